"""Options by name: checked against a dataclass's fields, with the closest name in the error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..registry.errors import unknown_name


def check_options(owner: str, options: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse an option that its owner does not have.

    Args:
        owner: whose options they are, for the error.
        options: as given.
        known: the names there are.

    Raises:
        UnknownNameError: naming the closest options.
    """
    known = list(known)
    for name in options:
        if name not in known:
            raise unknown_name(f"option of {owner}", name, known)
