"""From the words after a command to its arguments, by its signature: errors are sentences."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tyro

from ..learners.arguments import refuse_rest, take_settings
from ..registry import ZootomyError, read_documentation


def call_command(command: Callable[..., None], name: str, words: Sequence[str]) -> None:
    """Call a command with what its words say; see `read_words`."""
    places, options = read_words(command, name, words)
    command(*places, **options)


def read_words(
    command: Callable[..., None],
    name: str,
    words: Sequence[str],
    kinds: Mapping[str, Any] | None = None,
) -> tuple[list[str], dict[str, Any]]:
    """What the words after a command say; positional-only arguments stand without a name.

    Args:
        command: the function; its docstring is the help.
        name: as it is typed.
        words: what comes after it.
        kinds: name -> type of its options; None: as its signature has them.

    Returns:
        The values without a name, and those with one that are given.

    Raises:
        ZootomyError: for an option that does not exist, a value that does not fit, or a word too
            many or too few.
    """
    if wants_help(words):
        print_help(command, name)
    hints = typing.get_type_hints(command)
    parameters = inspect.signature(command).parameters.values()
    places = [one for one in parameters if one.kind is one.POSITIONAL_ONLY]
    if kinds is None:
        kinds = {one.name: hints[one.name] for one in parameters if one not in places}
    rest, options = take_settings(words, kinds, switches_alone=True)
    unknown = [word for word in rest if word.startswith("--")]
    refuse_rest(unknown, kinds, f"`zootomy {name} --help` lists its options.")
    _check_count(command, name, places, rest)
    return rest, options


def _check_count(
    command: Callable[..., None], name: str, places: Sequence[inspect.Parameter], words: list[str]
) -> None:
    """Refuse words too many or too few."""
    if len(words) > len(places):
        takes = " ".join(place.name.upper() for place in places)
        raise ZootomyError(
            f"{words[len(places)]!r} is a word too many: write `zootomy {name} {takes}`, options "
            f"as --NAME VALUE, and what belongs together in quotes."
        )
    said = read_documentation(command).arguments
    for place in places[len(words) :]:
        if place.default is place.empty:
            raise ZootomyError(
                f"`zootomy {name}` needs {place.name.upper()}: {said[place.name].rstrip('.')}."
            )


def print_help(command: Callable[..., None], name: str) -> None:
    """Print the options of a command, and end the process."""
    tyro.cli(command, prog=f"zootomy {name}", args=["--help"])


def wants_help(words: Sequence[str]) -> bool:
    """Whether a command is asked for its help."""
    return bool({"-h", "--help"} & set(words))
