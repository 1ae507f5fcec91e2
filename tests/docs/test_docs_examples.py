"""Every Python example of the documentation runs; so does what its command lines only look at."""

import shlex
from pathlib import Path

import pytest
from pages import ROOT, fences, left_out, run_python
from zootomy.cli import main

# The page with command lines that need what its Python registers has a test of its own.
PAGES = [page for page in (ROOT / "docs").rglob("*.md") if page.name != "extending.md"]
PAGES += [page for page in [ROOT / "README.md"] if page.is_file()]
WITH_PYTHON = sorted(page for page in PAGES if fences(page, "python"))
LOOKING = ("list", "show", "show-cluster", "diff", "find")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.usefixtures("clean_registry")
@pytest.mark.filterwarnings("ignore::zootomy.learners.DoubtfulChoiceWarning")
@pytest.mark.parametrize("page", WITH_PYTHON, ids=name)
def test_python(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_python(page)


def lines() -> list[str]:
    """Command lines, each once, those continued on a further line as one."""
    found = []
    for page in PAGES:
        for _, text in fences(page, "console"):
            joined = text.replace("\\\n", " ")
            found += [line for line in joined.splitlines() if line.startswith("zootomy ")]
    return sorted({line for line in found if line.split()[1] in LOOKING})


@pytest.mark.parametrize("line", lines())
def test_command_lines_that_only_look(line, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert main(shlex.split(line)[1:]) == 0
    captured = capsys.readouterr()
    assert captured.out
    assert captured.err == ""


def test_there_is_something_to_run():
    assert len(WITH_PYTHON) > 15
    assert {line.split()[1] for line in lines()} == set(LOOKING)


def test_few_examples_are_left_out():
    assert sum(len(left_out(page)) for page in PAGES) <= 2
