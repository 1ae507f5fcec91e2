"""The table of faults in README.md speaks of tests that exist."""

import re
from pathlib import Path

HERE = Path(__file__).parent


def test_every_test_that_the_table_names_is_there():
    text = (HERE / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"`(\w+)/(test_\w+|Test\w+)`", text)
    assert len(named) > 50
    sources: dict[str, str] = {}
    for room, name in named:
        if room not in sources:
            files = sorted((HERE / room).glob("test_*.py"))
            sources[room] = "\n".join(file.read_text(encoding="utf-8") for file in files)
        kind = "class" if name.startswith("Test") else "def"
        assert re.search(rf"\b{kind} {name}\b", sources[room]), f"{room} has no {name}"
