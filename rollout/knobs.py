"""What the configs of engines and transfers share: checks of a setting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from ..registry import ZootomyError
from .types import whole_number

LoadFormat = Literal["dummy", "auto"]
"""Where a real engine's first weights come from."""


def whole(name: str, value: Any, least: int) -> None:
    """Refuse what is no integer of at least `least`; None passes."""
    if value is not None:
        whole_number(name, value, least, f"an integer >= {least}")


def share(name: str, value: Any) -> None:
    """Refuse what is no number in (0, 1]; None passes."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ZootomyError(f"{name} is {value!r}; expected a number in (0, 1]")


def seconds(name: str, value: Any) -> None:
    """Refuse what is no finite number above 0."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value < float("inf"):
        raise ZootomyError(f"{name} is {value!r}; expected a number of seconds > 0")


def changed(settings: Any) -> list[str]:
    """Names of a config's fields that are not at their defaults, in order."""
    plain = type(settings)()
    return [name for name, value in vars(settings).items() if value != vars(plain)[name]]


def choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Refuse what is none of the choices."""
    if value not in choices:
        raise ZootomyError(f"{name} is {value!r}; expected {' or '.join(map(repr, choices))}")


def load_format(at: str, value: Any, model: str) -> None:
    """Refuse an unknown one, and one that reads weights where no folder is named.

    Args:
        at: where the settings stand, with a dot at the end.
        value: the load format.
        model: the engine's folder.
    """
    choice(f"{at}load_format", value, get_args(LoadFormat))
    if value == "auto" and not model:
        raise ZootomyError(
            f"{at}load_format is 'auto', which reads weights from a folder, and {at}model is "
            "empty; name a folder, or leave load_format 'dummy'"
        )


def parallel(mesh: Mapping[str, int] | None) -> tuple[int, int]:
    """Devices that share a layer, and copies of the model, on a rollout mesh.

    Args:
        mesh: size by axis; an engine has whole weights where a trainer shards them (`fsdp`).
    """
    sizes = mesh or {}
    return sizes.get("tensor", 1), sizes.get("data", 1) * sizes.get("fsdp", 1)


def mapping(name: str, value: Any) -> None:
    """Refuse what is no mapping with names as keys."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ZootomyError(f"{name} is {value!r}; expected a mapping from names to values")


def refuse_taken(where: str, given: Mapping[str, Any], taken: Mapping[str, str]) -> None:
    """Refuse engine arguments that a knob of ours sets.

    Args:
        where: the mapping's dotted name.
        given: arguments passed through.
        taken: engine's argument -> our knob.

    Raises:
        ZootomyError: naming the knob to use instead.
    """
    for name in given:
        if name in taken:
            raise ZootomyError(
                f"{where} sets {name!r}, which {taken[name]} decides; set that one instead"
            )
