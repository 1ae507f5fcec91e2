"""From our parameters to an engine's: rules as data, and a check that names every misfit.

Our names are Hugging Face's. A rule says what an engine calls a parameter and how it lays it
out; the first rule whose pattern matches the whole name counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from ..models import EMBEDDING, HEAD
from ..registry import ZootomyError

Shape = tuple[int, ...]
Layout = Literal["out_in", "in_out", "heads_out", "heads_in"]
"""How a matrix lies: `[out, in]` as in Hugging Face files, `[in, out]` as in ours, `[in, heads,
head_dim]` of a projection to heads, `[heads, head_dim, out]` of one from heads."""

SHOWN = 8  # names of a kind that an error lists


class Rule(NamedTuple):
    """What an engine makes of the parameters whose name matches.

    Attributes:
        pattern: regular expression of the whole Hugging Face name.
        name: the engine's, with `\\1` and so on.
        layout: of matrices; vectors have only one.
    """

    pattern: str
    name: str
    layout: Layout = "out_in"


class Fused(NamedTuple):
    """Several of our matrices that are one of the engine's, stacked along their outputs.

    Attributes:
        whole: the engine's module.
        parts: our modules, in order.
    """

    whole: str
    parts: tuple[str, ...]


def translate(name: str, rules: Sequence[Rule]) -> tuple[str, Layout]:
    """An engine's name and layout of a parameter.

    Raises:
        ZootomyError: if no rule speaks of it.
    """
    for rule in rules:
        match = re.fullmatch(rule.pattern, name)
        if match:
            return match.expand(rule.name), rule.layout
    raise ZootomyError(
        f"no rule maps parameter {name!r} to the engine; add one to the engine's mapping_config"
    )


def fuse_shapes(shapes: Mapping[str, Shape], fused: Sequence[Fused]) -> dict[str, Shape]:
    """Shapes with the parts of fused modules stacked.

    Args:
        shapes: by Hugging Face name.
        fused: which modules are one.
    """
    whole_of = {part: one for one in fused for part in one.parts}
    found: dict[str, Shape] = {}
    for name, shape in shapes.items():
        modules = name.split(".")
        one = whole_of.get(modules[-2]) if len(modules) > 1 else None
        if one is None:
            found[name] = shape
            continue
        modules[-2] = one.whole
        key = ".".join(modules)
        before = found.get(key)
        found[key] = shape if before is None else (before[0] + shape[0], *shape[1:])
    return found


def check_names(
    engine: str,
    ours: Mapping[str, Shape],
    theirs: Mapping[str, Shape | None],
    *,
    padded: Callable[[str], bool] = lambda name: name in (EMBEDDING, HEAD),
    optional: Sequence[str] = (HEAD,),
) -> None:
    """Refuse an engine whose parameters are not those that will be sent.

    Args:
        engine: its name, for the message.
        ours: shape by the engine's name, as it will be sent.
        theirs: shape by name, as the engine holds it; None where it hides it.
        padded: whether more rows than ours are padding (of a vocabulary).
        optional: names that may be sent although the engine has no such parameter.

    Raises:
        ZootomyError: listing what is missing, extra or misshapen.
    """
    missing = sorted(theirs.keys() - ours.keys())
    extra = sorted(ours.keys() - theirs.keys() - set(optional))
    misshapen = [
        f"{name} (ours {ours[name]}, the engine's {theirs[name]})"
        for name in sorted(ours.keys() & theirs.keys())
        if not _fits(ours[name], theirs[name], padded(name))
    ]
    problems = [
        f"{len(names)} {kind}: {', '.join(names[:SHOWN])}{' ...' if len(names) > SHOWN else ''}"
        for kind, names in (
            ("that the engine has and the policy lacks", missing),
            ("that the policy has and the engine lacks", extra),
            ("of another shape", misshapen),
        )
        if names
    ]
    if problems:
        raise ZootomyError(
            f"the parameters of the policy are not those of the {engine} engine; "
            f"{'; '.join(problems)}. Give the engine the policy's own config (leave model and "
            "hf_config_path empty), or map the names in mapping_config"
        )


def _fits(ours: Shape, theirs: Shape | None, padded: bool) -> bool:
    if theirs is None or ours == theirs:
        return True
    return padded and len(ours) == len(theirs) and ours[1:] == theirs[1:] and ours[0] <= theirs[0]
