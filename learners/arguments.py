"""From the words of a command line to names and values, where no parser knows the names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import yaml

from ..registry import ZootomyError, closest

if TYPE_CHECKING:
    from .run_config import RunConfig

# Mappings whose keys depend on other settings, given as `--task.options.terms 3`.
OPEN_MAPPINGS = (
    "task.options",
    "optimizer.options",
    "critic_optimizer.options",
    "rollout.vllm.hf_overrides",
    "rollout.vllm.additional_config",
    "rollout.vllm.mapping_config",
    "rollout.vllm.engine_arguments",
    "rollout.sglang_jax.engine_arguments",
    "cluster.role_to_mesh",
    "cluster.axis_rules",
    "cluster.role_to_dtype",
)

_EXPONENT = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?[eE][+-]?[0-9]+")


def take_dotted(words: list[str], prefixes: tuple[str, ...]) -> tuple[list[str], dict[str, Any]]:
    """Split off `--PREFIX[.NAME] VALUE`.

    Values are read as YAML; for a bare prefix, `a,b` is a list of names.

    Args:
        words: the command line.
        prefixes: e.g. the names of the slots.

    Returns:
        The words that are left, and dotted name -> value.

    Raises:
        ZootomyError: for a name without a value or given twice, or a value that is not YAML.
    """
    rest: list[str] = []
    taken: dict[str, Any] = {}
    left = iter(words)
    for word in left:
        key, sign, value = word.partition("=")
        name = key.removeprefix("--").replace("-", "_")
        if not key.startswith("--") or not _matches(name, prefixes):
            rest.append(word)
            continue
        if name in taken:
            raise ZootomyError(f"{key} is given twice.")
        taken[name] = _parse(key, value if sign else _next(key, left))
    return rest, taken


def take_named(words: list[str], name: str) -> tuple[list[str], list[str]]:
    """Split off every `--NAME VALUE`.

    Args:
        words: the command line.
        name: without its dashes.

    Returns:
        The words that are left, and the values in order.

    Raises:
        ZootomyError: if a value is missing.
    """
    rest: list[str] = []
    values: list[str] = []
    left = iter(words)
    for word in left:
        key, sign, value = word.partition("=")
        if key == f"--{name}":
            values.append(value if sign else _next(key, left))
        else:
            rest.append(word)
    return rest, values


def check_flags(words: list[str], known: Iterable[str]) -> None:
    """Refuse an option that does not exist, and one that is given twice.

    Args:
        words: the command line.
        known: every right name, dotted, with underscores and without dashes in front.

    Raises:
        ZootomyError: naming the option, and the closest that exists.
    """
    known = set(known)
    for key, name in _flags(words):
        if name not in known and _positive(name) not in known:
            raise ZootomyError(
                f"Unknown option {key}.{_guess(name, known)} `zootomy train --help` lists the "
                f"settings, `zootomy list` the slots."
            )
    refuse_twice(words)


def refuse_twice(words: list[str]) -> None:
    """Refuse an option that is given twice, of which the first would have no effect.

    Raises:
        ZootomyError: naming it.
    """
    given: set[str] = set()
    for key, name in _flags(words):
        if _positive(name) in given:
            raise ZootomyError(f"{key} is given twice.")
        given.add(_positive(name))


def _flags(words: list[str]) -> list[tuple[str, str]]:
    """The options among the words: as written, and with underscores and no dashes in front."""
    keys = [word.partition("=")[0] for word in words if word.startswith("--")]
    return [(key, key.removeprefix("--").replace("-", "_")) for key in keys]


def _positive(name: str) -> str:
    """The name of a switch that may be turned off as `--model.no-remat`."""
    parent, dot, last = name.rpartition(".")
    return f"{parent}{dot}{last.removeprefix('no_')}"


def _guess(name: str, known: set[str]) -> str:
    """A question that names the closest options; the part before the dot may be what is wrong."""
    head, dot, rest = name.partition(".")
    heads = {one.split(".")[0] for one in known}
    if dot and head not in heads:
        close = [f"{first}.{rest}" for first in closest(head, heads)]
    else:
        close = closest(name, known)
    return f" Did you mean {' or '.join(f'--{one}' for one in close)}?" if close else ""


def with_options(run: RunConfig, options: Mapping[str, Any]) -> RunConfig:
    """The settings with entries of their open mappings set.

    Args:
        run: the settings.
        options: dotted name -> value, as `take_dotted` gives them.

    Returns:
        The settings with them.

    Raises:
        ZootomyError: for a mapping that is given a value as a whole.
    """
    for key, value in options.items():
        if key in OPEN_MAPPINGS:
            raise ZootomyError(
                f"--{key} is set entry by entry, as in --{key}.NAME VALUE; got {value!r}."
            )
        for mapping in OPEN_MAPPINGS:
            if key.startswith(f"{mapping}."):
                run = _with_entry(run, mapping.split("."), key.removeprefix(f"{mapping}."), value)
    return run


def _with_entry(settings: Any, path: Sequence[str], key: str, value: Any) -> Any:
    """A frozen dataclass whose mapping at `path` has one entry more."""
    part = settings.__dict__[path[0]]
    changed = {**part, key: value} if len(path) == 1 else _with_entry(part, path[1:], key, value)
    return replace(settings, **{path[0]: changed})


def _next(key: str, left: Any) -> str:
    value = next(left, None)
    if value is None or value.startswith("--"):
        raise ZootomyError(f"{key} needs a value, as in {key} VALUE.")
    return value


def _matches(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def _parse(key: str, text: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ZootomyError(f"{key} {text!r} is not YAML: {error}") from error
    if isinstance(value, str) and _EXPONENT.fullmatch(value):
        # YAML of 2005 takes 1e-4, without a point, for text.
        return float(value)
    if isinstance(value, str) and "," in value and "." not in key:
        return [part.strip() for part in value.split(",")]
    return value
