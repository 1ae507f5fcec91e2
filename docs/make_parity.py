"""Writes docs/parity.md: how far the blocks are from the numbers of other libraries.

python docs/make_parity.py                  runs the parity tests first, some minutes
python docs/make_parity.py report.json      takes a report that they wrote (ZOOTOMY_PARITY_REPORT)
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zootomy.registry import names

ROOT = Path(__file__).parent.parent
PAGE = Path(__file__).parent / "parity.md"
TESTS = ROOT / "tests" / "parity"
PEERS = {
    "verl": "verl", "openrlhf": "OpenRLHF", "trl": "TRL", "skyrl": "SkyRL", "areal": "AReaL",
    "tunix": "Tunix", "oat-llm": "OAT",
}  # fmt: skip
# Whose blocks a family's files are held against.
SLOTS = {
    "reward_shaping": ("reward_shaping",),
    "kl": ("kl_estimator",),
    "kl_in_reward": ("kl_estimator",),
    "advantage": ("advantage", "reward_shaping", "whitening"),
    "whitening": ("whitening",),
    "policy_loss": ("policy_loss", "ratio", "correction", "regularizer"),
    "rollout_correction": ("correction",),
    "aggregation": ("aggregation",),
    "value_loss": ("value_loss",),
    "kl_controller": ("controller",),
    "preference": ("preference_loss", "reward_loss"),
}
# In a test's docstring or first comment; in brackets the functions that it is true of.
MARK = re.compile(r"Deliberately (?:different|not offered)(?: \((.*?)\))?: (.*)", re.DOTALL)
# Test -> (reason, functions that it is true of).
Reasons = Mapping[str, tuple[str, str]]


def run_tests() -> dict[str, Any]:
    """The report of all parity tests.

    Raises:
        CalledProcessError: if one of them fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        environment = {**os.environ, "ZOOTOMY_PARITY_REPORT": str(report)}
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(TESTS)]
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
        return json.loads(report.read_text())


def page(report: Mapping[str, Any]) -> str:
    """The page: a table a family, a row a function of the peers, a column a peer."""
    reasons = deliberate()
    files = [name for name, entry in report.items() if not _differs(name, entry, reasons)]
    worst = max(entry["error"] for entry in report.values())
    peers = sorted({name.rsplit("__", 1)[1] for name in report}, key=list(PEERS).index)
    lines = [
        "# Parity with other libraries",
        "",
        "<!-- Written by docs/make_parity.py; `make parity-page` writes it anew. -->",
        "",
        f"Inputs, outputs and, where there are any, gradients of {len(report)} functions of",
        f"{', '.join(PEERS[peer] for peer in peers)} were recorded, at their hyperparameters, and",
        "stand in `tests/data/parity/`. The tests in `tests/parity/` hold the blocks to them in",
        "float32, with a relative tolerance of 1e-5 (absolute 1e-6). The tables show the largest",
        f"error met, relative to 1 + |value|; the largest of all is {worst:.0e}. Of {len(report)}",
        f"files {len(files)} agree throughout; where a † stands, the library and the blocks differ",
        "on purpose in some case, which a test names and holds: see",
        "[below](#differences-on-purpose). Log-probabilities, entropies and sums of squared",
        "probabilities (`distribution/`, of the models and no blocks) are held in the same way by",
        "`tests/models/test_models_parity.py`.",
    ]
    families = dict.fromkeys(name.split("/")[0] for name in report)
    for family in sorted(families, key=list(SLOTS).index):
        lines += ["", f"## {family}", "", *_table(family, report, peers, reasons)]
    return "\n".join([*lines, "", *_differences(report, reasons)]) + "\n"


def deliberate() -> dict[str, tuple[str, str]]:
    """Test -> why a library's numbers are not met there, and of which functions it is true.

    Both are from its docstring or first comment; no function stands for all that it looks at.
    """
    found = {}
    for file in sorted(TESTS.glob("test_*.py")):
        source = file.read_text(encoding="utf-8")
        for node in ast.parse(source).body:
            if not isinstance(node, ast.FunctionDef):
                continue
            text = ast.get_docstring(node) or _first_comment(source, node)
            said = MARK.search(text)
            if said:
                found[f"{file.name}::{node.name}"] = (" ".join(said[2].split()), said[1] or "")
    return found


def _first_comment(source: str, node: ast.FunctionDef) -> str:
    """The comment that a function begins with, as text."""
    lines = source.split("\n")[node.body[0].lineno - 1 - 8 : node.body[0].lineno - 1]
    taken: list[str] = []
    for line in reversed(lines):
        if not line.lstrip().startswith("#"):
            break
        taken.insert(0, line.lstrip().removeprefix("#").strip())
    return " ".join(taken)


def _differs(name: str, entry: Mapping[str, Any], reasons: Reasons) -> bool:
    """Whether a test of a peer's file names a difference that is true of it."""
    return any(test in entry["tests"] and _is_of(name, reasons[test][1]) for test in reasons)


def _is_of(name: str, functions: str) -> bool:
    function = name.split("/")[1].rsplit("__", 1)[0]
    return not functions or function in functions.split(", ")


def _table(family: str, report: Mapping[str, Any], peers: list[str], reasons: Reasons) -> list[str]:
    own = {name: entry for name, entry in report.items() if name.split("/")[0] == family}
    present = [peer for peer in peers if any(name.endswith(f"__{peer}") for name in own)]
    functions = dict.fromkeys(name.split("/")[1].rsplit("__", 1)[0] for name in own)
    lines = [f"| function | blocks | {' | '.join(PEERS[peer] for peer in present)} |"]
    lines.append("|---|---|" + "---|" * len(present))
    for function in sorted(functions):
        blocks: dict[str, None] = {}
        cells = []
        for peer in present:
            entry = own.get(f"{family}/{function}__{peer}")
            if entry is None:
                cells.append("")
                continue
            blocks |= dict.fromkeys(b for b in entry["blocks"] if b.split(".")[0] in SLOTS[family])
            mark = " †" if _differs(f"{family}/{function}__{peer}", entry, reasons) else ""
            cells.append(f"{entry['error']:.0e}{mark}")
        # A test that calls the terms of a block does not run the block itself.
        named = [f"{slot}.{one}" for slot in SLOTS[family] for one in names(slot)]
        chosen = sorted(blocks) or [b for b in named if function.startswith(b.split(".")[1])]
        links = ", ".join(_link(block) for block in chosen)
        lines.append(f"| {function} | {links} | {' | '.join(cells)} |")
    return lines


def _link(block: str) -> str:
    slot, name = block.split(".")
    return f"[`{name}`](reference/{slot}.md#{name})"


def _differences(report: Mapping[str, Any], reasons: Reasons) -> list[str]:
    lines = ["## Differences on purpose", "", "| where | why |", "|---|---|"]
    for test, (reason, functions) in reasons.items():
        tried = [name for name, entry in report.items() if test in entry["tests"]]
        files = [name for name in tried if _is_of(name, functions)]
        named = ", ".join(f"`{name}`" for name in files)
        lines.append(f"| {named} | {reason.replace('|', chr(92) + '|')} |")
    return lines


def main() -> None:
    """Write the page from a report, or from the tests."""
    report = json.loads(Path(sys.argv[1]).read_text()) if len(sys.argv) > 1 else run_tests()
    PAGE.write_text(page(report), encoding="utf-8")


if __name__ == "__main__":
    main()
