"""The library's speed beside its peers' and beside what the machine allows.

`make bench` makes the peers' environments where they are missing and runs this; `zootomy bench`
runs it with the environments that are there. Everyone gets the same model, prompts and lengths,
takes turns in one call, and computes alone: the others are stopped meanwhile.

    python benchmarks/bench.py                              # about twenty-five minutes on two cores
    python benchmarks/bench.py --only generation,train --peers tunix
    python benchmarks/bench.py --quick                      # small vocabulary, few rounds
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import cases
import curves
import limits
import memory
import report
import tyro
from children import PEERS, PeerError
from context import Bench
from rows import Row
from sections import SECTIONS

ROOT = Path(__file__).parent.parent
LARGE = ("step", "generation", "logps", "train", "weights")
ALONE = ("memory", "curves")
USER_ERROR = 2


def main(
    only: str = "",
    peers: str = "tunix,torch,vllm",
    quick: bool = False,
    resume: bool = False,
    publish: bool = False,
    rounds: int = 5,
    cores: Annotated[int, tyro.conf.arg(help_behavior_hint="(default: all)")] = 0,
    folder: str = "runs/bench",
    environments: str = str(ROOT),
) -> None:
    """Measure, print a table, and keep everything as JSON.

    Args:
        only: sections, with commas: step, generation, long_tail, logps, train, weights, memory,
            curves; empty: all.
        peers: who is measured beside the library, with commas; empty: nobody. A peer that has no
            environment, or fails, is a line that says so.
        quick: the small vocabulary, two rounds and three points a curve.
        resume: keep what the folder holds and measure the rest.
        publish: also write the tables and curves that the documentation shows.
        rounds: how often each measure is taken.
        cores: threads a library may use; 0: as many as there are.
        folder: where results go.
        environments: where the peers' virtual environments are.
    """
    wanted = _chosen("section", only, (*SECTIONS, *ALONE))
    names = _chosen("peer", peers, tuple(PEERS)) if peers else ()
    home = Path(folder).resolve()
    results = home / "results"
    places = home, Path(environments).resolve()
    bench = Bench(*places, names, 2 if quick else rounds, cores or os.cpu_count() or 1)
    run = _Run(bench, results, resume)
    with bench.children.group():
        for vocab in (cases.SMALL_VOCAB,) if quick else (cases.SMALL_VOCAB, cases.LARGE_VOCAB):
            for name, section in SECTIONS.items():
                if name in wanted and (vocab == cases.SMALL_VOCAB or name in LARGE):
                    run.section(f"{name}-{vocab}", lambda s=section, v=vocab: _checked(s, bench, v))
            bench.end_all()
        if "memory" in wanted and not quick:
            run.section("memory", lambda: memory.objective(bench, cases.HUGE_VOCAB))
            bench.end_all()
        if "curves" in wanted:
            run.curves(points=3 if quick else 4, rounds=1 if quick else 3)
    text = run.text()
    (results / "table.md").write_text(text, encoding="utf-8")
    print(f"\n{text}\nresults: {results}")
    if publish:
        from publish import publish_results

        publish_results(results)


class _Run:
    """Sections one after another, each kept when it is done."""

    def __init__(self, bench: Bench, results: Path, resume: bool):
        self.bench, self.results, self.resume = bench, results, resume
        results.mkdir(parents=True, exist_ok=True)
        if not resume:
            for file in results.iterdir():
                file.unlink()

    def section(self, name: str, measure: Callable[[], list[Row]]) -> None:
        if self.resume and report.read(self.results, name) is not None:
            return
        self.bench.say(name)
        began = time.perf_counter()
        try:
            rows = measure()
        except PeerError as error:
            self.bench.say(f"    failed: {error}")
            return
        report.write(self.results, name, rows)
        self.keep_machine()
        for row in rows:
            ratio = row.ratio()
            found = "" if ratio is None else f", {ratio:.2f}× the best of the others"
            value = row.value("zootomy")
            shown = "failed" if value is None else f"{value:,.4g} {row.unit}"
            self.bench.say(f"    {row.measure}: {shown}{found}")
        self.bench.say(f"    {time.perf_counter() - began:.0f} s")

    def keep_machine(self) -> None:
        """The machine, its limits and the versions: what was known before and what is new."""
        old = report.read_data(self.results, "machine")
        new = {
            "versions": self.bench.versions,
            "limits": self.bench.measured_limits,
            "differences": self.bench.differences,
        }
        merged = {key: {**old.get(key, {}), **value} for key, value in new.items()}
        report.write_data(self.results, "machine", {**limits.describe(), **merged})

    def curves(self, *, points: int, rounds: int) -> None:
        if self.resume and report.read_data(self.results, "curves"):
            return
        self.bench.say("curves")
        found = curves.measure(self.bench, points=points, rounds=rounds)
        report.write_data(self.results, "curves", found)
        curves.plot(found, self.results / "scaling.png")

    def text(self) -> str:
        """All that was measured, as Markdown."""
        rows = all_rows(self.results)
        parts = [report.machine(report.read_data(self.results, "machine")), report.table(rows)]
        found = report.read_data(self.results, "curves")
        if found:
            parts += ["Exponents, measured (and counted):\n", curves.table(found)]
        failed = report.failures(rows)
        if failed:
            parts += ["Not measured:\n", "\n".join(f"- {line}" for line in failed) + "\n"]
        return "\n".join(parts)


def _checked(section: Callable[[Bench, int], list[Row]], bench: Bench, vocab: int) -> list[Row]:
    """A section, after everyone's log-probabilities were compared."""
    if section is not SECTIONS["step"] and str(vocab) not in bench.differences:
        bench.check(vocab)
    return section(bench, vocab)


def all_rows(results: Path) -> list[Row]:
    """The rows of every section that is there, in the order of the table."""
    shown = ("generation", "long_tail", "logps", "train", "weights", "step")
    vocabs = (cases.SMALL_VOCAB, cases.LARGE_VOCAB)
    names = [f"{name}-{vocab}" for vocab in vocabs for name in shown]
    found = [report.read(results, name) for name in (*names, "memory")]
    return [row for rows in found if rows is not None for row in rows]


def _chosen(what: str, text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    if not text:
        return known
    names = tuple(name.strip() for name in text.split(","))
    wrong = [name for name in names if name not in known]
    if wrong:
        print(
            f"error: There is no {what} {wrong[0]!r}; choose from {', '.join(known)}.",
            file=sys.stderr,
        )
        raise SystemExit(USER_ERROR)
    return names


def run() -> int:
    """The command line: tyro writes the help, and errors are sentences, as of every command."""
    from zootomy.commands.words import call_command
    from zootomy.registry import ZootomyError

    try:
        call_command(main, "bench", sys.argv[1:])
    except ZootomyError as error:
        print(f"error: {error}", file=sys.stderr)
        return USER_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(run())
