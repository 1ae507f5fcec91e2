"""From results to the pages: tables and curves between their marks.

python benchmarks/publish.py        # after a change of how tables look, from the kept results
"""

from __future__ import annotations

import shutil
from pathlib import Path

import curves
import paper
import report
from rows import Row

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance.md"
README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "images" / "scaling.png"
CURVES = (
    "![seconds against group size, prompts, completion length, vocabulary and layers]"
    "(images/scaling.png)"
)
NOTHING = "No run is kept yet: `make bench ARGS=--publish` keeps one.\n"
NO_CURVES = (
    "No curves are kept yet: the run that the tables come from left them out. "
    "`make bench ARGS=--publish` measures and keeps them.\n"
)


def publish_results(results: Path) -> None:
    """Keep the results of a run in the repository and write the pages from them."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    for file in sorted(results.glob("*.json")):
        shutil.copyfile(file, RESULTS / file.name)
    picture = results / "scaling.png"
    if picture.is_file():
        shutil.copyfile(picture, PICTURE)
    write_pages()


def write_pages() -> None:
    """Write every table that the pages hold."""
    for path, blocks in ((PAGE, page_blocks()), (README, readme_blocks())):
        path.write_text(filled(path.read_text(encoding="utf-8"), blocks), encoding="utf-8")


def page_blocks() -> dict[str, str]:
    """What stands between the marks of docs/performance.md."""
    from bench import all_rows

    rows = all_rows(RESULTS)
    data, found = report.read_data(RESULTS, "machine"), report.read_data(RESULTS, "curves")
    return {
        "machine": report.machine(data) if data else NOTHING,
        "table": f"{report.extent(rows)}\n\n{report.table(rows)}{_notes(rows)}"
        if rows
        else NOTHING,
        "curves": f"{CURVES}\n\n{curves.table(found)}" if found else NO_CURVES,
        "paper": paper.tables(),
    }


def readme_blocks() -> dict[str, str]:
    """What stands between the marks of the README."""
    from bench import all_rows

    data, rows = report.read_data(RESULTS, "machine"), all_rows(RESULTS)
    if not data or not rows:
        return {"speed": NOTHING}
    where = f"{data['processor']}, {data['cores']} cores, {data['date']}; V is the vocabulary."
    return {"speed": f"{report.short_table(rows)}\n{where} {report.extent(rows)}\n"}


def filled(text: str, blocks: dict[str, str]) -> str:
    """A page with what is between `<!-- name -->` and `<!-- /name -->` replaced.

    Raises:
        ValueError: for marks that the page does not have.
    """
    for name, block in blocks.items():
        start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        if start not in text or end not in text:
            raise ValueError(f"the page has no marks for {name!r}")
        before, rest = text.split(start, 1)
        text = before + start + block + end + rest.split(end, 1)[1]
    return text


def _notes(rows: list[Row]) -> str:
    lines = [f"- {row.measure} (V {row.vocab:,}): {note}." for row in rows for note in row.notes]
    lines += [f"- failed: {text}." for text in report.failures(rows)]
    return "\n" + "\n".join(lines) + "\n" if lines else ""


if __name__ == "__main__":
    write_pages()
