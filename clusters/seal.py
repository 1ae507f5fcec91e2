"""What makes damage to a checkpoint visible: the size and checksum of each of its files."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

SEAL = "checksums.json"


def write_seal(folder: Path, about: dict[str, Any]) -> None:
    """Write down the size and SHA-256 of every file of a folder, which makes it whole.

    Args:
        folder: all written.
        about: plain data that is kept along with them.
    """
    files = {
        str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": _digest(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != SEAL
    }
    with (folder / SEAL).open("w", encoding="utf-8") as file:
        json.dump({**about, "files": files}, file, indent=1, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())


def read_seal(folder: Path) -> dict[str, Any] | None:
    """What `write_seal` wrote; None where it is not there or not readable."""
    try:
        seal = json.loads((folder / SEAL).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return seal if isinstance(seal, dict) and isinstance(seal.get("files"), dict) else None


def damage(folder: Path) -> str | None:
    """What is wrong with a sealed folder, in words; None where all is as it was written.

    Every file is read to its end. Files that the seal does not know do no harm.
    """
    seal = read_seal(folder)
    if seal is None:
        return f"its {SEAL} is {'unreadable' if (folder / SEAL).exists() else 'missing'}"
    for name, told in seal["files"].items():
        path = folder / name
        try:
            size = path.stat().st_size
            if size != told["bytes"]:
                return f"its file {name} has {size} bytes, and was written with {told['bytes']}"
            if _digest(path) != told["sha256"]:
                return f"its file {name} has other contents than were written"
        except FileNotFoundError:
            return f"its file {name} is missing"
        except OSError as error:
            return f"its file {name} cannot be read ({error.strerror})"
    return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
