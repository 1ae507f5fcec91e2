"""Pages of the documentation, and the blocks of code on them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+) -->\n)?"
    r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)


def fences(page: Path, language: str) -> list[tuple[str, str]]:
    """`(title, text)` of the blocks in one language that are to be run, in order."""
    return [
        (found["title"] or "", found["text"])
        for found in FENCE.finditer(page.read_text(encoding="utf-8"))
        if found["language"] == language and not found["reason"]
    ]


def left_out(page: Path) -> list[str]:
    """Why some of a page's blocks are not run."""
    found = FENCE.finditer(page.read_text(encoding="utf-8"))
    return [one["reason"] for one in found if one["reason"]]


def run_python(page: Path) -> None:
    """Run a page's Python in one namespace, in the working directory, files of a title written."""
    for title, text in fences(page, "python") + fences(page, "yaml"):
        if title:
            Path(title).write_text(text, encoding="utf-8")
    namespace: dict[str, object] = {}
    for title, text in fences(page, "python"):
        if not title:
            exec(compile(text, str(page), "exec"), namespace)
