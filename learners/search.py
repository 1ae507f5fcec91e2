"""Searching everything that the blocks and algorithms say of themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from ..registry import describe, names, slots
from .equations import definitions
from .zoo import ALIASES, ZOO, algorithm

# How much a word counts by where it stands.
_NAME, _SUMMARY, _TEXT = 6.0, 4.0, 1.0
_ENDINGS = ("ingly", "edly", "ings", "ing", "ied", "ies", "ed", "es", "ly", "s", "e")


@dataclass(frozen=True)
class Hit:
    """Something that was found.

    Attributes:
        name: `slot.block`, or the name of an algorithm.
        kind: `block` or `algorithm`.
        summary: its first line.
        where: `file:line`.
        matched: how many of the query's words it holds.
        score: how well it fits among those that hold as many; larger is better.
    """

    name: str
    kind: str
    summary: str
    where: str
    matched: int = 0
    score: float = 0.0


def search(query: str) -> list[Hit]:
    """Blocks and algorithms whose names, aliases or texts hold the words of a query.

    What holds more of the words comes first. Words match by their stems, so that `bias` finds
    `biases`; a word that begins another counts half.

    Args:
        query: words, as in `"length bias"`.

    Returns:
        What was found, the best first.
    """
    wanted = [_stem(word) for word in _words(query)]
    if not wanted:
        return []
    phrase = " ".join(wanted)
    found = []
    for hit, texts in _entries():
        scores = [max(_rate(word, text) for text in texts) for word in wanted]
        matched = sum(score > 0 for score in scores)
        if matched:
            near = sum(weight for text, weight in texts if phrase in _stems(text))
            score = sum(scores) + (near if len(wanted) > 1 else 0.0)
            found.append(replace(hit, matched=matched, score=score))
    return sorted(found, key=lambda hit: (-hit.matched, -hit.score, hit.name))


def _entries() -> Iterable[tuple[Hit, list[tuple[str, float]]]]:
    """Everything there is, with its texts and how much each counts."""
    for place in slots():
        if place.choices:
            continue
        for name in names(place.name):
            info = describe(place.name, name)
            said = info.documentation
            yield (
                Hit(f"{place.name}.{name}", "block", info.summary, info.where),
                [
                    (" ".join((name, *info.aliases)), _NAME),
                    (info.summary, _SUMMARY),
                    (said.remarks, 2 * _TEXT),
                    (" ".join(said.arguments.values()), _TEXT),
                    (f"{said.source} {info.paper} {place.name} {place.question}", _TEXT),
                ],
            )
    for name in ZOO:
        entry = algorithm(name)
        aliases = [alias for alias, target in ALIASES.items() if target == name]
        blocks = " ".join(name for name, _ in definitions(entry))
        yield (
            Hit(name, "algorithm", entry.summary, where(name)),
            [
                (" ".join((name, *aliases)), _NAME),
                (entry.summary, _SUMMARY),
                (" ".join(entry.deviations), 2 * _TEXT),
                (f"{entry.paper} {blocks}", _TEXT),
            ],
        )


def where(name: str) -> str:
    """`file:line` of an algorithm's entry in the zoo."""
    folder = Path(__file__).parent / "zoo"
    for file in sorted(folder.glob("*.py")):
        for line, text in enumerate(file.read_text(encoding="utf-8").split("\n"), start=1):
            if re.match(rf'    "{re.escape(name)}": ', text):
                return f"{file}:{line}"
    return str(folder)


def _rate(word: str, text: tuple[str, float]) -> float:
    """The text's weight if it holds the word, less where the word is only a part of another."""
    stems = _stems(text[0])
    if f" {word} " in f" {stems} ":
        return text[1]
    return text[1] / 2 if len(word) > 2 and f" {word}" in f" {stems}" else 0.0


@cache
def _stems(text: str) -> str:
    return " ".join(_stem(word) for word in _words(text))


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.casefold())


def _stem(word: str) -> str:
    for ending in _ENDINGS:
        # The s of `bias`, `loss` or `focus` is no plural's.
        whole = ending == "s" and word[-2:-1] in "aisu"
        if word.endswith(ending) and not whole and len(word) - len(ending) > 2:
            return word[: -len(ending)]
    return word
