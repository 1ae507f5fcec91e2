"""Results as JSON on disk and as a Markdown table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rows import LEFT_OUT, OURS, Row, Target, from_plain, to_plain

COLUMNS = (OURS, "tunix", "torch", "vllm")
"""The table's; what runs on torch goes by several labels."""
ON_TORCH = ("transformers", "trl", "torch")
GIGA = 1e9


def write(folder: Path, name: str, rows: Sequence[Row]) -> None:
    """Keep a section's rows."""
    _dump(folder / f"{name}.json", to_plain(rows))


def read(folder: Path, name: str) -> list[Row] | None:
    """A section's rows, None if it has none."""
    path = folder / f"{name}.json"
    return from_plain(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def write_data(folder: Path, name: str, data: Mapping[str, Any]) -> None:
    """Keep what is no table."""
    _dump(folder / f"{name}.json", data)


def read_data(folder: Path, name: str) -> dict[str, Any]:
    """What `write_data` kept; empty if there is none."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown: values, ratio to the best of the others, target, share of the bound."""
    head = "| measure | V | zootomy | tunix | transformers, TRL, torch | vLLM | against the best |"
    lines = [f"{head} target | of the bound |", "|---|---|---|---|---|---|---|---|---|"]
    lines += [_line(row) for row in rows]
    return "\n".join(lines) + "\n"


def short_table(rows: Sequence[Row]) -> str:
    """The rows that have a ratio, beside the best of the others, for a page with little room."""
    lines = ["| measure | V | zootomy | best of the others | ratio |", "|---|---|---|---|---|"]
    for row in rows:
        ratio = row.ratio()
        if ratio is None:
            continue
        values = {name: row.value(name) for name in row.cells if name != OURS}
        known = {name: value for name, value in values.items() if value is not None}
        pick = max if row.more_is_better else min
        best = pick(known, key=lambda name, known=known: known[name])
        lines.append(
            f"| {row.measure} | {row.vocab:,} | {_value(row, OURS)} | "
            f"{_value(row, best)} ({_name(best)}) | {ratio:.2f}× |"
        )
    return "\n".join(lines) + "\n"


def extent(rows: Sequence[Row]) -> str:
    """How often was measured, as a sentence."""
    counts = {
        len(cell["all"])
        for row in rows
        for label, cell in row.cells.items()
        if label == OURS and len(cell.get("all", ())) > 1
    }
    few, many = min(counts, default=1), max(counts, default=1)
    rounds = f"{few} rounds" if few == many else f"{few} to {many} rounds"
    once = "what takes a new process (first steps, memory) was measured once"
    return f"Medians of {rounds}; {once}."


def failures(rows: Sequence[Row]) -> list[str]:
    """Who gave no result, where and why; who was not asked for one is not named."""
    return [
        f"{label}, {row.measure} (V {row.vocab:,}): {cell['failed']}"
        for row in rows
        for label, cell in row.cells.items()
        if "failed" in cell and cell["failed"] != LEFT_OUT
    ]


def machine(data: Mapping[str, Any]) -> str:
    """The machine, its limits and the versions, as Markdown."""
    lines = [
        f"{data['processor']}, {data['cores']} cores, {data['memory_gib']} GiB, {data['system']}, "
        f"Python {data['python']}, {data['date']}. "
        + "; ".join(f"{name}: {text}" for name, text in sorted(data["versions"].items()))
        + ".",
        "",
        "| measured limits | V | |",
        "|---|---|---|",
    ]
    words = {
        "wide": ("products of a whole pass (3,072 rows), float32", "GFLOP/s"),
        "head": ("the head on 2,048 rows", "GFLOP/s"),
        "skinny": ("products of a decode step (32 rows)", "GFLOP/s"),
        "skinny_head": ("the head on 32 rows", "GFLOP/s"),
        "ram": ("copy, 256 MiB (read + written)", "GB/s"),
        "near": ("copy, as large as the layers' weights", "GB/s"),
    }
    for vocab, limits in data["limits"].items():
        for name, (text, unit) in words.items():
            lines.append(f"| {text} | {int(vocab):,} | {limits[name] / GIGA:.1f} {unit} |")
    for vocab, found in data["differences"].items():
        for name, value in found.items():
            text = value if isinstance(value, str) else f"{value:.1e} nats"
            lines.append(f"| log-probabilities, {name} against ours | {int(vocab):,} | {text} |")
    return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    cells = [row.measure, f"{row.vocab:,}", _value(row, OURS)]
    for column in COLUMNS[1:]:
        labels = ON_TORCH if column == "torch" else (column,)
        cells.append(", ".join(_named(row, one) for one in labels if one in row.cells))
    ratio, share = row.ratio(), row.share()
    cells.append("" if ratio is None else f"{ratio:.2f}×")
    cells.append("; ".join(_target(row, target) for target in row.targets))
    cells.append("" if share is None else f"{100 * share:.0f}%")
    return "| " + " | ".join(cells) + " |"


def _target(row: Row, target: Target) -> str:
    if not target.against:
        wanted, found = f"≥ {100 * target.factor:.0f}% of the bound", row.share()
        text = "" if found is None else f" ({100 * found:.0f}%)"
    else:
        names = "the best" if len(target.against) > 1 else _name(target.against[0])
        wanted, found = f"≥ {target.factor:g}× {names}", row.ratio(target.against)
        text = "" if found is None else f" ({found:.2f})"
    reached = row.reached(target)
    mark = "?" if reached is None else "✓" if reached else "✗"
    return f"{wanted}{text} {mark}"


def _value(row: Row, label: str) -> str:
    cell = row.cells.get(label)
    if cell is None:
        return ""
    if "failed" in cell:
        return "–" if cell["failed"] == LEFT_OUT else "failed"
    value = cell["value"]
    if row.unit == "s":
        return f"{1000 * value:.2f} ms" if value < 0.1 else f"{value:.2f} s"
    return f"{value:,.0f} {row.unit}"


def _named(row: Row, label: str) -> str:
    """A value in a column that several share."""
    shared = label in ON_TORCH and label != "torch" and row.value(label) is not None
    return f"{_name(label)} {_value(row, label)}" if shared else _value(row, label)


def _name(label: str) -> str:
    return {"trl": "TRL", "vllm": "vLLM", "tunix": "Tunix"}.get(label, label)


def _dump(path: Path, data: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
