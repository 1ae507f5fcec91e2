"""Writes docs/reference/ from the registry: `make reference`, after any change of a block.

A page a slot with every block in it, one for the named algorithms, one for the papers. What stands
there is read from signatures and docstrings; nothing is written twice.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import zootomy
from reference_arrays import CALLS, HOSTED, SETUP
from zootomy.learners.anatomy import idle_slots, objective_text
from zootomy.learners.costs import cost
from zootomy.registry import (
    BlockInfo,
    Hyperparameter,
    Slot,
    ZootomyError,
    describe,
    names,
    plugin_slots,
    slots,
    type_text,
)

FOLDER = Path(__file__).parent / "reference"
ROOT = Path(__file__).parent.parent
PAIRS = ("preference_loss", "reward_loss")
# Algorithms to put a block into, so that its line can be run: the first that takes it quietly.
HOSTS = ("dr_grpo", "grpo", "ppo", "gspo", "reinforce")
WITH_KL = ("grpo", "ppo")
# A block of so many algorithms is not listed with each of them.
MANY = 8
WIDTH = 100
TABLE_BEGINS, TABLE_ENDS = "<!-- algorithms -->", "<!-- /algorithms -->"


def pages() -> dict[str, str]:
    """File name in docs/reference/ -> its text."""
    shown = [place for place in slots() if place.name in SETUP or place in plugin_slots()]
    found = {f"{place.name}.md": slot_page(place) for place in shown}
    found["algorithms.md"] = algorithms_page()
    found["papers.md"] = papers_page()
    return {name: text.rstrip() + "\n" for name, text in found.items()}


def slot_page(place: Slot) -> str:
    """Every block of a slot: what it does, its formula, its hyperparameters, a line to run."""
    lines = [f"# {place.name}", "", place.question, ""]
    if place.choices:
        return "\n".join([*lines, *_words(place)])
    inputs = ", ".join(place.inputs)
    lines += [f"A block is `f({inputs}) -> {place.returns}`."]
    if place.extras:
        lines += ["It may ask for: " + ", ".join(f"`{name}`" for name in place.extras) + "."]
    if place.parameters:
        lines += ["", "Settings of the slot, beside those of the block:", ""]
        lines += _table(place.parameters.values())
    if place.name in SETUP:
        lines += ["", "The lines below run after:", "", "```python", "import jax.numpy as jnp"]
        lines += ["import zootomy", "", *SETUP[place.name].rstrip().split("\n"), "```"]
    lines.append("")
    lines += ["| block | what it does |", "|---|---|"]
    for name in names(place.name):
        info = describe(place.name, name)
        lines.append(f"| [`{name}`](#{name}) | {_cell(info.summary)} |")
    for name in names(place.name):
        lines += ["", *_block(place, describe(place.name, name))]
    return "\n".join(lines)


def algorithms_page() -> str:
    """Every named algorithm: what is special about it, its objective, what it needs and costs."""
    lines = [
        "# Algorithms",
        "",
        "Each is a choice of one block a slot. What an entry leaves out is",
    ]
    lines += ["the default: no shaping, no filter, no KL, the undiscounted return, no whitening, a"]
    lines += ["token ratio, `ppo_clip`, no correction, `token_mean`, no regularizer, no critic."]
    lines += ["`NAME+CORRECTION` adds a correction to any of them, as in `grpo+tis`.", ""]
    lines += ["```python", "import zootomy", "```", ""]
    lines += ["| algorithm | what is special about it | needs | paper |", "|---|---|---|---|"]
    entries = [zootomy.algorithm(name) for name in zootomy.algorithms()]
    for entry in entries:
        needs = ", ".join(f"`{need}`" for need in sorted(entry.needs))
        summary = _cell(entry.summary)
        lines.append(
            f"| [`{entry.name}`](#{entry.name}) | {summary} | {needs} | {_link(entry.paper)} |"
        )
    for entry in entries:
        lines += ["", *_algorithm(entry)]
    return "\n".join(lines)


def papers_page() -> str:
    """Paper -> the algorithms and blocks that come from it."""
    found: dict[str, list[str]] = {}
    for name in zootomy.algorithms():
        paper = zootomy.algorithm(name).paper
        found.setdefault(paper, []).append(f"[`{name}`](algorithms.md#{name})")
    for place in slots():
        for name in () if place.choices else names(place.name):
            link = f"[`{place.name}.{name}`]({place.name}.md#{name})"
            found.setdefault(describe(place.name, name).paper, []).append(link)
    found.pop("", None)
    lines = ["# Papers", "", "| paper | algorithms and blocks |", "|---|---|"]
    lines += [f"| {_link(paper)} | {', '.join(found[paper])} |" for paper in sorted(found)]
    return "\n".join(lines)


def with_table(readme: str) -> str:
    """The README with the table of algorithms between its two marks written anew."""
    before, _, rest = readme.partition(TABLE_BEGINS)
    _, _, after = rest.partition(TABLE_ENDS)
    return f"{before}{TABLE_BEGINS}\n{algorithms_table()}\n{TABLE_ENDS}{after}"


def algorithms_table() -> str:
    """A row an algorithm: the blocks it is made of."""
    lines = [
        "| algorithm | shaping | KL | advantage, whitening | ratio, loss | aggregation | beside |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in zootomy.algorithms():
        entry = zootomy.algorithm(name)
        blocks = {slot_name: spec.name for slot_name, spec in entry.specs()}
        shaping = ", ".join(spec.name for spec in entry.value("reward_shaping")) or "–"
        distance = f"{blocks['kl_estimator']} in the {entry.kl_placement}"
        whitening = "" if blocks["whitening"] == "none" else f", {blocks['whitening']}"
        beside = [blocks[s] for s in ("group_filter", "correction", "value_loss") if s in blocks]
        beside += [spec.name for spec in entry.value("regularizer")]
        cells = [
            f"`{name}`",
            shaping,
            "–" if entry.kl_placement == "none" else distance,
            blocks["advantage"] + whitening,
            f"{blocks['ratio']}, {blocks['policy_loss']}",
            blocks["aggregation"],
            ", ".join(beside) or "–",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _words(place: Slot) -> list[str]:
    from zootomy.learners.equations import PLACEMENTS

    lines = ["A word and no block:", "", "| word | what it means |", "|---|---|"]
    lines += [f"| `{word}` | {PLACEMENTS[word]} |" for word in place.choices]
    lines += ["", "```python", "import zootomy", ""]
    lines += [f'zootomy.algorithm("grpo", kl_placement="{word}")' for word in ("loss", "reward")]
    return [*lines, "```"]


def _block(place: Slot, info: BlockInfo) -> list[str]:
    said = info.documentation
    lines = [f"## {info.name}", "", said.summary, "", "```text", *said.formula.split("\n"), "```"]
    lines += ["", *said.remarks.split("\n")] if said.remarks else []
    facts = [
        ("also called", ", ".join(f"`{alias}`" for alias in info.aliases)),
        ("paper", _link(info.paper)),
        ("needs", ", ".join(_need(line) for line in info.needs_lines)),
        (
            "asks for",
            "; ".join(f"`{name}`: {said.arguments.get(name, '')}" for name in info.extras),
        ),
        ("returns", said.returns),
        ("source", said.source),
        ("defined in", f"`{_file(info)}`"),
        ("in the zoo", ", ".join(_users(place.name, info.name))),
    ]
    lines += ["", *(f"- {label}: {text}" for label, text in facts if text)]
    if info.hyperparameters:
        lines += ["", *_table(info.hyperparameters.values())]
    if place.name not in SETUP:
        return lines
    return [*lines, "", "```python", *_lines_to_run(place, info), "```"]


def _file(info: BlockInfo) -> Path:
    """Where a block is defined: below the checkout, or the file of a plug-in."""
    file = Path(info.where.rpartition(":")[0])
    return file.relative_to(ROOT) if file.is_relative_to(ROOT) else Path(file.name)


def _lines_to_run(place: Slot, info: BlockInfo) -> list[str]:
    """The bare function, and the block in an algorithm."""
    bare = f'zootomy.get("{place.name}", "{info.name}")'
    if place.name == "controller":
        steps = [f"controller = {bare}()", "controller.update(controller.init(), metrics)"]
        return [*steps, _hosted(place.name, info.name)]
    extras = [f"{name}={name}" for name in info.extras]
    inputs = CALLS.get((place.name, info.name), ", ".join([*place.inputs, *extras]))
    lines = _wrapped(bare, inputs)
    return lines if place.name in PAIRS else [*lines, _hosted(place.name, info.name)]


def _need(line: str) -> str:
    """The need's name as code, and when it holds."""
    name, when, rest = line.partition(" where ")
    return f"`{name}`{when}{rest}"


def _wrapped(function: str, inputs: str) -> list[str]:
    """The call on as few lines as fit."""
    if len(function) + len(inputs) + 2 <= WIDTH:
        return [f"{function}({inputs})"]
    if len(inputs) + 4 <= WIDTH:
        return [f"{function}(", f"    {inputs}", ")"]
    return [f"{function}(", *(f"    {one}," for one in inputs.split(", ")), ")"]


def _hosted(slot_name: str, name: str) -> str:
    """`zootomy.algorithm(...)` with the block in it: the first host that takes it quietly."""
    if (slot_name, name) in HOSTED:
        return HOSTED[slot_name, name]
    hosts = WITH_KL if slot_name in ("kl_estimator", "controller") else HOSTS
    value: object = name
    text = f'"{name}"'
    if slot_name == "regularizer":
        value, text = zootomy.block(name, coef=0.01), f'zootomy.block("{name}", coef=0.01)'
    more = {"value_loss": "mse"} if slot_name == "advantage" else {}
    for strict in (True, False):
        for extra in ({}, more):
            for host in hosts:
                with warnings.catch_warnings():
                    warnings.simplefilter("error" if strict else "ignore")
                    try:
                        zootomy.algorithm(host, **{slot_name: value, **extra})
                    except (ZootomyError, UserWarning):
                        continue
                settings = [f"{slot_name}={text}", *(f'{key}="{x}"' for key, x in extra.items())]
                return f'zootomy.algorithm("{host}", {", ".join(settings)})'
    raise AssertionError(f"no algorithm takes {slot_name} {name}; add one to HOSTS")


def _algorithm(entry: zootomy.Algorithm) -> list[str]:
    lines = [f"## {entry.name}", "", entry.summary, ""]
    facts = [("paper", _link(entry.paper))]
    facts += [("deviates", sentence) for sentence in entry.deviations]
    facts += [("needs", ", ".join(f"`{need}`" for need in sorted(entry.needs)))]
    lines += [f"- {label}: {text}" for label, text in facts if text]
    lines += [f"- {line.strip()}" for line in cost(entry).lines()[1:]]
    lines += ["", "```text", *objective_text(entry).split("\n"), "```", ""]
    used = [f"[`{slot}.{spec.name}`]({slot}.md#{spec.name})" for slot, spec in _used(entry)]
    lines += [", ".join(used), "", "```python", f'zootomy.algorithm("{entry.name}").describe()']
    return [*lines, "```", "", "```console", f"zootomy train --algorithm {entry.name}", "```"]


def _used(entry: zootomy.Algorithm) -> list[tuple[str, zootomy.BlockSpec]]:
    """The blocks that have a part in what an algorithm computes."""
    idle = idle_slots(entry)
    return [(slot, spec) for slot, spec in entry.specs() if slot not in idle]


def _users(slot_name: str, name: str) -> list[str]:
    """Links to the algorithms in whose slot a block stands."""
    found = []
    for one in zootomy.algorithms():
        entry = zootomy.algorithm(one)
        if any((slot_name, name) == (slot, spec.name) for slot, spec in _used(entry)):
            found.append(f"[`{one}`](algorithms.md#{one})")
    if len(found) > MANY:
        return [f"{len(found)} of its {len(zootomy.algorithms())} [algorithms](algorithms.md)"]
    return found


def _table(entries: object) -> list[str]:
    lines = ["| hyperparameter | type | default | meaning |", "|---|---|---|---|"]
    for entry in entries:  # type: ignore[attr-defined]
        assert isinstance(entry, Hyperparameter)
        default = "must be given" if entry.default is ... else f"`{entry.default!r}`"
        kind = _cell(type_text(entry.annotation))
        lines.append(f"| `{entry.name}` | {kind} | {default} | {_cell(entry.meaning)} |")
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _link(paper: str) -> str:
    if paper.startswith("arXiv:"):
        return f"[{paper}](https://arxiv.org/abs/{paper.removeprefix('arXiv:')})"
    if paper.startswith("doi:"):
        return f"[{paper}](https://doi.org/{paper.removeprefix('doi:')})"
    return f"<{paper}>" if paper.startswith("http") else paper


def main() -> None:
    """Write every page, drop those of slots that are gone, and the README's table.

    The arguments of the command are files of plug-ins, whose slots get pages too.
    """
    for plugin in sys.argv[1:]:
        zootomy.load_plugin(plugin)
    FOLDER.mkdir(exist_ok=True)
    written = pages()
    for name, text in written.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    for file in FOLDER.glob("*.md"):
        if file.name not in written:
            file.unlink()
    readme = ROOT / "README.md"
    readme.write_text(with_table(readme.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
