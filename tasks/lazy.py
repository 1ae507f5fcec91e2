"""Optional packages: imported when used, with an error that says what to install."""

from __future__ import annotations

import importlib
from types import ModuleType

from .types import TaskError


def require(module: str, purpose: str) -> ModuleType:
    """Import a module of the `tasks` extra.

    Args:
        module: its dotted name.
        purpose: what needs it, as the error's first words.

    Returns:
        The module.

    Raises:
        TaskError: if it is not installed, naming the extra.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name.split(".")[0]):
            raise
        raise TaskError(
            f"{purpose} needs the package {module.split('.')[0]!r}, which is not installed: "
            'pip install "zootomy[tasks]"'
        ) from None
