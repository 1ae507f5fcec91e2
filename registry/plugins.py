"""Blocks of third parties: a user's file, or installed packages that name an entry point."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
import warnings
from pathlib import Path

from .errors import ZootomyError
from .registry import restore, snapshot

ENTRY_POINT_GROUP = "zootomy.blocks"

_loaded: dict[Path, str] = {}


def load_plugin(path: str | Path) -> str:
    """Run a Python file so that the blocks it registers have names; a second call does nothing.

    Args:
        path: the file. It is the user's own code and runs as such.

    Returns:
        The name of the module made of it.

    Raises:
        ZootomyError: if the file is missing, is not a `.py` file, or fails while it runs.
    """
    file = Path(path).expanduser().resolve()
    if file in _loaded:
        return _loaded[file]
    if not file.is_file():
        raise ZootomyError(f"The plug-in {str(path)!r} does not exist; give a path to a .py file.")
    if file.suffix != ".py":
        raise ZootomyError(f"The plug-in {str(path)!r} is no .py file; give a path to one.")
    name = f"zootomy_plugin_{file.stem}_{len(_loaded)}"
    specification = importlib.util.spec_from_file_location(name, file)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    # What it registered before it failed goes with it: a mended file can be loaded again.
    before = snapshot()
    try:
        specification.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        restore(before)
        what = "" if isinstance(error, ZootomyError) else f"{type(error).__name__}: "
        raise ZootomyError(
            f"The plug-in {str(path)!r} failed while it was loaded: {what}{error}"
        ) from error
    _loaded[file] = name
    return name


def load_entry_points() -> list[str]:
    """Import every installed package that declares the entry point group `zootomy.blocks`.

    A package that fails is named in a warning and left out, so that it does not take the rest
    down with it.

    Returns:
        The names of the entry points that were loaded.
    """
    loaded = []
    for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        try:
            entry.load()
        except Exception as error:
            warnings.warn(
                f"The plug-in {entry.name!r} ({entry.value}) could not be loaded: "
                f"{type(error).__name__}: {error}",
                stacklevel=2,
            )
        else:
            loaded.append(entry.name)
    return loaded
