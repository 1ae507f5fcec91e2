"""A process between the trainer and an engine that signals its parent when something goes wrong.

SGLang-JAX sends SIGQUIT to the parent of its process, which would end the training. Run as a
script, with the standard library alone: `python -P guard.py HANDLE CODE` runs
`python -c CODE HANDLE`, ends it when such a signal comes, and ends as it ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys


def main(handle: int, code: str) -> int:
    """Watch over one child; the exit code is its own."""
    child = subprocess.Popen([sys.executable, "-c", code, str(handle)], pass_fds=[handle])
    # The line breaks when the child ends, and not only when this process does.
    os.close(handle)
    for name in (signal.SIGQUIT, signal.SIGTERM):
        signal.signal(name, lambda *_: child.kill())
    return child.wait()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2]))
