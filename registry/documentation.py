"""What the docstring of a block says, part by part; the only place where a formula is written."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_SECTIONS = ("Args", "Returns", "Raises", "Source")
_SECTION = re.compile(rf"^({'|'.join(_SECTIONS)}):[ ]*(.*)$")


@dataclass(frozen=True)
class Documentation:
    """The parts of a block's docstring; those that it does not have are empty.

    Attributes:
        summary: its first line.
        remarks: the prose between the first line and the arguments, a paragraph a line.
        formula: the first indented passage, dedented.
        arguments: name -> what is said of it, on one line.
        returns: what comes out, on one line.
        source: where it comes from, on one line.
    """

    summary: str
    remarks: str
    formula: str
    arguments: Mapping[str, str]
    returns: str
    source: str


def read_documentation(function: Callable[..., Any]) -> Documentation:
    """The parts of a function's docstring."""
    first, _, rest = (inspect.getdoc(function) or "").partition("\n")
    parts = _split(rest.split("\n"))
    remarks, formula = _body(parts[""])
    return Documentation(
        summary=first,
        remarks=remarks,
        formula=formula,
        arguments=_arguments(parts["Args"]),
        returns=_one_line(parts["Returns"]),
        source=_one_line(parts["Source"]),
    )


def _split(lines: list[str]) -> dict[str, list[str]]:
    """Section -> its lines; what stands before the first section under an empty name."""
    parts: dict[str, list[str]] = {name: [] for name in ("", *_SECTIONS)}
    current = ""
    for line in lines:
        found = _SECTION.match(line)
        if found:
            current = found[1]
            parts[current].append(found[2])
        elif line.startswith(">>>"):
            break
        else:
            parts[current].append(line)
    return parts


def _body(lines: list[str]) -> tuple[str, str]:
    """The prose, and the first indented passage."""
    passages: list[list[str]] = [[]]
    for line in lines:
        indented = line.startswith("    ")
        # A blank line inside of a passage belongs to it; one between two paragraphs parts them.
        if passages[-1] and line.strip() and indented != passages[-1][0].startswith("    "):
            passages.append([])
        if passages[-1] or line.strip():
            passages[-1].append(line)
    formulas = [text for text in passages if text and text[0].startswith("    ")]
    formula = textwrap.dedent("\n".join(formulas[0])).strip() if formulas else ""
    if not formulas and len(passages) == 1 and re.search(r" [=←] ", " ".join(lines)):
        # Indentation is relative: where nothing else follows the first line, it is not there.
        formula, passages = textwrap.dedent("\n".join(lines)).strip(), []
    prose = "\n".join("\n".join(text) for text in passages if text and text not in formulas)
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", prose)]
    return "\n".join(part for part in paragraphs if part), formula


def _arguments(lines: list[str]) -> dict[str, str]:
    """Name -> text, from `    name: text` with further lines indented deeper."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in lines:
        entry = re.match(r"^ {4}(\w+(?:, \w+)*): (.*)$", line)
        if entry:
            name = entry[1]
            found[name] = [entry[2]]
        elif name and line.strip():
            found[name].append(line.strip())
    return {one: " ".join(text) for names, text in found.items() for one in names.split(", ")}


def _one_line(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())
