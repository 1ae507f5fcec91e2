"""Why a checkpoint could not be written, or none can be used, in words."""

from __future__ import annotations

import errno
import logging
import shutil
from pathlib import Path

WRITE_ERRORS = (OSError, RuntimeError, ValueError)
"""What Orbax and the file system raise where something cannot be written."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FULL_WORDS = ("No space left", "Disk quota exceeded", "File too large")
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_REFUSED_WORDS = ("Permission denied", "Read-only file system", "PERMISSION_DENIED")


def one_sentence(error: Exception, folder: Path) -> str:
    """What went wrong, short, without the full stop."""
    code = error.errno if isinstance(error, OSError) else None
    text = str(error)
    if code in _FULL or any(words in text for words in _FULL_WORDS):
        return f"the disk is full ({_free(folder)})"
    if code in _REFUSED or any(words in text for words in _REFUSED_WORDS):
        return "permission is denied"
    return (text.splitlines() or [type(error).__name__])[0].rstrip(".")


def _free(folder: Path) -> str:
    try:
        return f"{shutil.disk_usage(folder).free / 2**20:.0f} MiB free"
    except OSError:
        return "its free space is unknown"


class _Raised(logging.Filter):
    """Leaves out what Orbax's threads log before the same error is raised."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log it."""
        text = record.getMessage()
        return "_SignalingThread.run() raised" not in text and "background save thread" not in text


_RAISED = _Raised()


def quiet_orbax() -> None:
    """Log each failure once, as the error that is raised, and not also as tracebacks of threads."""
    logging.getLogger("absl").addFilter(_RAISED)


def nothing_whole(folder: Path, broken: dict[int, str]) -> str:
    """The sentence for a folder all of whose checkpoints are damaged."""
    told = "; ".join(f"of that of step {step}, {wrong}" for step, wrong in broken.items())
    return (
        f"Every checkpoint in {folder} is damaged: {told}. Bring back a copy of one, or begin the "
        "run again in another folder."
    )
