"""The table engine x property of docs/rollout.md, from what `make test-engines` has written.

    python docs/make_contract.py engine_contract.json [more.json ...]

An engine that needs an environment of its own is run there, with the variable
`ZOOTOMY_CONTRACT_TABLE=more.json`; what several runs say of an engine, the first says.
"""

import json
import sys
from pathlib import Path

PAGE = Path(__file__).parent / "rollout.md"
BEGIN, END = "<!-- contract -->\n", "<!-- /contract -->"


def main():
    """Put the table in its place."""
    entries = {}
    for file in sys.argv[1:]:
        for name, row in json.loads(Path(file).read_text(encoding="utf-8")).items():
            before = entries.get(name, {})
            entries[name] = before | {k: text for k, text in row.items() if k not in before}
    kinds = list(dict.fromkeys(kind for row in entries.values() for kind in row))
    lines = [f"| property | {' | '.join(kinds)} |", "|---" * (len(kinds) + 1) + "|"]
    for name, row in entries.items():
        lines.append(f"| {name} | {' | '.join(row.get(kind, 'not run') for kind in kinds)} |")
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(before + BEGIN + "\n".join(lines) + "\n" + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
