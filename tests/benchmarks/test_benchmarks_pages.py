"""The pages hold what the kept results and the counts say."""

import publish
import pytest


def test_a_block_is_replaced_between_its_marks():
    page = "before\n<!-- a -->\nold\n<!-- /a -->\nafter\n"
    found = publish.filled(page, {"a": "new\n"})
    assert found == "before\n<!-- a -->\nnew\n<!-- /a -->\nafter\n"
    assert publish.filled(found, {"a": "new\n"}) == found


def test_a_page_without_marks_is_an_error():
    with pytest.raises(ValueError, match=r"^the page has no marks for 'b'$"):
        publish.filled("<!-- a -->\n<!-- /a -->\n", {"b": "new\n"})


@pytest.mark.parametrize("page", ["docs/performance.md", "README.md"])
def test_pages_are_up_to_date(page):
    """After a change of the results or of how they are shown: `python benchmarks/publish.py`."""
    path = publish.ROOT / page
    blocks = publish.page_blocks() if path == publish.PAGE else publish.readme_blocks()
    text = path.read_text(encoding="utf-8")
    assert publish.filled(text, blocks) == text
