"""Lines of JSON that survive a kill: whole lines only, cut back to the resumed step."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .metrics import MonitorError


class StepLines:
    """A file of JSON objects, each with a `step`, that is only ever appended to.

    Args:
        path: the file; its folder is made.
        resume_step: None starts a new file; else lines of later steps, and a last line that a
            kill cut short, are removed before anything is appended.

    Raises:
        MonitorError: if the file exists and `resume_step` is None.
    """

    def __init__(self, path: Path, resume_step: int | None):
        path.parent.mkdir(parents=True, exist_ok=True)
        if resume_step is None:
            if path.exists() and path.stat().st_size:
                raise MonitorError(
                    f"{path} exists already; resume its run, or choose another run folder."
                )
        elif path.exists():
            _cut_back(path, resume_step)
        self.path = path
        self._file = path.open("a", encoding="utf-8")

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line and hand it to the operating system."""
        self._file.write(json.dumps(record, allow_nan=False, ensure_ascii=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file; a last line that was cut short is left out.

    Raises:
        MonitorError: naming file and line, for a broken line that is not the last.
    """
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith("\n"):
                return
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise MonitorError(f"{path}:{number}: not valid JSON: {error}.") from None
            if not isinstance(record, dict) or not isinstance(record.get("step"), int):
                raise MonitorError(f"{path}:{number}: expected an object with a whole 'step'.")
            yield record


def _cut_back(path: Path, last_step: int) -> None:
    """Keep the lines up to a step, by way of a second file, so that a kill here loses nothing."""
    kept = [record for record in read_lines(path) if record["step"] <= last_step]
    draft = path.with_suffix(path.suffix + ".tmp")
    with draft.open("w", encoding="utf-8") as file:
        for record in kept:
            file.write(json.dumps(record, allow_nan=False, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
