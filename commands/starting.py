"""From a command line to the algorithm and the settings of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..learners import Algorithm
from ..learners import algorithm as named_algorithm
from ..learners.arguments import refuse_rest, take_dotted, take_named, take_settings
from ..learners.run_config import RunConfig, read_yaml
from ..learners.settings import setting_kinds, with_settings
from ..learners.start import refuse_idle
from ..registry import ZootomyError, slots

_LISTED = "`zootomy train --help` lists the settings, `zootomy list` the slots."
# What stands beside the settings and the slots in every command that reads a run.
_WORDS = ("algorithm", "config", "plugin")


def read_start(
    words: list[str], extra: Mapping[str, Any] | None = None
) -> tuple[Algorithm, RunConfig, dict[str, Any]]:
    """What a command line names: an algorithm, the settings of a run, and options of the command.

    Args:
        words: after the command's name.
        extra: name -> type of the command's own options.

    Returns:
        The algorithm, the settings, and the values of the command's own options that are given.

    Raises:
        ZootomyError: for a word that is nothing of this, or a value that does not fit.
    """
    kinds = setting_kinds(RunConfig)
    own = dict(extra or {})
    places = [place.name for place in slots()]
    words, changes = take_dotted(words, tuple(places))
    words, names = take_named(words, "algorithm")
    words, files = take_named(words, "config")
    words, given = take_settings(words, kinds | own)
    refuse_rest(words, [*kinds, *own, *places, *_WORDS], _LISTED)
    chosen, run = starting_point(_only("algorithm", names), _only("config", files))
    run = with_settings(run, {name: value for name, value in given.items() if name not in own})
    if changes:
        chosen = chosen.override(changes)
    refuse_idle(chosen, run, given)
    return chosen, run, {name: value for name, value in given.items() if name in own}


def starting_point(name: str, file: str) -> tuple[Algorithm, RunConfig]:
    """The algorithm and settings that `--algorithm` and `--config` name."""
    chosen, run = read_yaml(file) if file else (named_algorithm("grpo"), RunConfig())
    return named_algorithm(name) if name else chosen, run


def _only(name: str, values: list[str]) -> str:
    """The one value given for a name, or an empty text; two are an error."""
    if len(values) > 1:
        raise ZootomyError(f"--{name} is given {len(values)} times: {', '.join(values)}; give one.")
    return values[0] if values else ""
