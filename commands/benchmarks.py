"""`zootomy bench`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ..registry import ZootomyError

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "bench.py"


def bench() -> None:
    """Measure speed beside the peers and the machine's limits; `zootomy bench --help` says how.

    Peers take part whose environments are there; `make bench` makes them first.
    """
    raise AssertionError("main hands bench on before this is called")


def bench_from(arguments: list[str]) -> int:
    """`zootomy bench`: the script in the repository, in a process of its own."""
    if not SCRIPT.is_file():
        raise ZootomyError(
            "The benchmarks are in the repository and not in an installed package. Clone it, "
            "`pip install --editable .`, and run `zootomy bench` or `make bench` there."
        )
    return subprocess.call([sys.executable, str(SCRIPT), *arguments])
