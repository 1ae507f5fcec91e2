"""Options by name: checked against a dataclass's fields, with the closest name in the error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from ..registry.errors import unknown_name
from .types import TaskError


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


def parse_options(pairs: Iterable[str]) -> dict[str, Any]:
    """Options of a command line, `["terms=3", "operators=[+, -]"]`, as a mapping.

    Args:
        pairs: `name=value`, each value in YAML.

    Returns:
        Name to value.

    Raises:
        TaskError: for a pair without `=`, an option given twice, or a value that is no YAML.
    """
    options: dict[str, Any] = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise TaskError(f"Option {pair!r} must be written name=value, e.g. terms=3.")
        if name in options:
            raise TaskError(f"Option {name!r} is given twice.")
        try:
            options[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise TaskError(f"Option {pair!r} holds no valid YAML value: {error}.") from None
    return options
