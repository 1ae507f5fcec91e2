"""What is generated is up to date, and every page stands in the navigation."""

import make_parity
import make_reference
import pytest
import yaml
from pages import ROOT
from zootomy.registry import slots

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def written():
    return make_reference.pages()


def test_the_reference_is_up_to_date(written):
    """After a change of a block or of the zoo: `make reference`."""
    there = {file.name: file.read_text(encoding="utf-8") for file in DOCS.glob("reference/*.md")}
    stale = [name for name in {**there, **written} if there.get(name) != written.get(name)]
    assert not stale, f"run `make reference`: {', '.join(sorted(stale))}"


def test_every_slot_has_a_page(written):
    assert {f"{place.name}.md" for place in slots()} < set(written)


def test_the_parity_page_speaks_of_every_file():
    """After a change of the parity tests or their data: `make parity-page`."""
    page = (DOCS / "parity.md").read_text(encoding="utf-8")
    families = set(make_parity.SLOTS)
    data = (ROOT / "tests/data/parity").glob("*/*.json")
    files = [file for file in data if file.parent.name in families]
    assert f" {len(files)} functions of" in page
    for file in files:
        function = file.stem.rsplit("__", 1)[0]
        assert f"\n| {function} |" in page, file


def test_every_deliberate_difference_is_on_the_parity_page():
    reasons = make_parity.deliberate()
    assert len(reasons) > 5
    page = (DOCS / "parity.md").read_text(encoding="utf-8")
    for reason, _ in reasons.values():
        assert reason.replace("|", "\\|") in page


def entries(nav) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    values = nav.values() if isinstance(nav, dict) else nav
    return [page for part in values for page in entries(part)]


def test_every_page_is_in_the_navigation():
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    there = {str(file.relative_to(DOCS)) for file in DOCS.rglob("*.md")}
    assert sorted(entries(config["nav"])) == sorted(there)


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_fetches_nothing(tmp_path):
    mkdocs = pytest.importorskip("mkdocs.commands.build")
    from mkdocs.config import load_config

    config = load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(tmp_path))
    mkdocs.build(config)
    for page in tmp_path.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        for tag in ('src="http', '<link rel="stylesheet" href="http', "fonts.googleapis"):
            assert tag not in text, page


def test_the_readme_has_the_table_of_algorithms():
    readme = (make_reference.ROOT / "README.md").read_text(encoding="utf-8")
    assert make_reference.with_table(readme) == readme, "run `make reference`"
