"""The measures: each asks everyone for the same work, in turn, and gives rows of a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import cases
import counts
from cases import COMPLETION, GROUP, PROMPT, PROMPTS
from children import Child, Contestant, PeerError, interleave
from context import Bench
from first_steps import cold, kept_row
from limits import Limits, typical
from rows import OURS, Row, Target, cells, rate, seconds

GENERATION = {"tunix": "tunix", "transformers": "torch", "vllm": "vllm"}
DEFAULT_CACHE, DEFAULT_ROUNDS = 1024, 2  # Tunix's, in slots; it is slow


def step(bench: Bench, vocab: int) -> list[Row]:
    """The whole GRPO step: the first in a cold process, its memory, and the steps after it."""
    request = {"do": "grpo_step", **_sampled(bench, vocab)}
    contestants = {"tunix": "tunix", "trl": "torch"}
    parts = {
        label: cold(bench, label, name, vocab, request)
        for label, name in {OURS: OURS, **contestants}.items()
        if name == OURS or name in bench.peers
    }
    bench.check(vocab)
    warm = [
        bench.contestant(label, name, vocab, **request)
        for label, name in {OURS: OURS, **contestants}.items()
    ]
    yardstick = bench.yardstick(vocab)
    interleave(warm, bench.rounds, beside=yardstick.measure)
    large = vocab == cases.LARGE_VOCAB
    targets = (Target(3.0 if large else 2.0, ("tunix",)), Target(2.0, ("trl",)))
    first = [one for one, _, _ in parts.values()]

    def pick(index: int) -> dict[str, dict]:
        found = {}
        for label, part in parts.items():
            value = part[index]
            found[label] = {"failed": part[0].failed} if value is None else {"value": value}
        return found

    limit = typical(yardstick.found)
    size, lengths = cases.shape(vocab), bench.batch(vocab).lengths
    work = counts.generation(size, [(PROMPT, [COMPLETION] * GROUP)] * PROMPTS)
    bound = limit.generation_seconds(size, work, rows=PROMPTS * GROUP) + 4 * _pass_bound(
        limit, size, lengths
    )
    return [
        Row("whole GRPO step", vocab, "s", False, cells(warm, seconds), bound, targets),
        Row(
            "first step, with compilation",
            vocab,
            "s",
            False,
            cells(first, seconds),
            targets=(Target(2.0, ("tunix",)),),
            notes=("a new process, no compiled programs kept; imports and loading not counted",),
        ),
        *([] if large else [kept_row(bench, vocab, request)]),
        Row(
            "from the start of the process to the end of the first step", vocab, "s", False, pick(1)
        ),
        Row(
            "peak memory of the process",
            vocab,
            "MiB",
            False,
            pick(2),
            targets=(Target(2.0, ("tunix",)),) if large else (),
            notes=("resident, after two steps",),
        ),
    ]


def generation(bench: Bench, vocab: int) -> list[Row]:
    """Completions of one length, from prompts in groups."""
    request = {"do": "generate", **_sampled(bench, vocab)}
    columns = [bench.contestant(OURS, OURS, vocab, **request)]
    columns += [
        bench.contestant(label, name, vocab, **request) for label, name in GENERATION.items()
    ]
    default = bench.contestant(
        "tunix at its default",
        "tunix",
        vocab,
        rounds=DEFAULT_ROUNDS,
        **request,
        cache=DEFAULT_CACHE,
    )
    saying = [
        bench.contestant(name, name, vocab, **request, logps=True) for name in ("tunix", "vllm")
    ]
    seeds = [{"seed": number} for number in range(bench.rounds)]
    yardstick = bench.yardstick(vocab)
    interleave([*columns, *saying, default], bench.rounds, seeds, beside=yardstick.measure)
    size, limit = cases.shape(vocab), typical(yardstick.found)
    work = counts.generation(size, [(PROMPT, [COMPLETION] * GROUP)] * PROMPTS)
    tokens = PROMPTS * GROUP * COMPLETION
    bound = tokens / limit.generation_seconds(size, work, rows=PROMPTS * GROUP)
    small = vocab == cases.SMALL_VOCAB
    return [
        Row(
            "generation, 64 tokens each",
            vocab,
            "tokens/s",
            True,
            cells(columns, rate),
            bound,
            (Target(2.5, tuple(GENERATION)), Target(0.5)) if small else (),
            ("ours with the log-probability of every token, the others without",),
        ),
        Row(
            "the same, everyone with log-probabilities",
            vocab,
            "tokens/s",
            True,
            cells([columns[0], *saying], rate),
            targets=(Target(2.5, ("tunix", "vllm")),) if small else (),
            notes=("transformers' generate has none short of all logits",),
        ),
        Row(
            "the same, Tunix's cache at its default of 1,024 slots",
            vocab,
            "tokens/s",
            True,
            cells([columns[0], _renamed(default, "tunix")], rate),
        ),
    ]


def long_tail(bench: Bench, vocab: int) -> list[Row]:
    """Completions of lengths with a long tail; ours sets them, the others are held to them."""
    request = {
        "do": "generate",
        "prompts": bench.prompts(vocab, cases.TAIL_PROMPTS),
        "group": GROUP,
        "new_tokens": cases.TAIL_LIMIT,
    }
    ours = bench.contestant(
        OURS, OURS, vocab, **request, stop_ids=cases.tail_stops(vocab), slots=cases.TAIL_SLOTS
    )
    others = [bench.contestant(label, name, vocab, **request) for label, name in GENERATION.items()]
    default = bench.contestant(
        "tunix at its default",
        "tunix",
        vocab,
        rounds=DEFAULT_ROUNDS,
        **request,
        cache=DEFAULT_CACHE,
    )
    size, groups, bounds = cases.shape(vocab), [], []
    yardstick = bench.yardstick(vocab)
    for number in range(bench.rounds):
        interleave([ours], 1, [{"seed": number}])
        if len(ours.answers) <= number:
            break
        lengths = ours.answers[number]["lengths"]
        path = str(cases.write_lengths(bench.work / f"lengths-{number}.json", lengths))
        told = {"lengths": path, "seed": number}
        slow = [default] if number < DEFAULT_ROUNDS else []
        interleave([*others, *slow], 1, [told])
        grouped = [lengths[i : i + GROUP] for i in range(0, len(lengths), GROUP)]
        work = counts.generation(size, [(PROMPT, one) for one in grouped])
        least = yardstick.measure().generation_seconds(size, work, rows=len(lengths))
        groups.append(lengths)
        bounds.append(sum(lengths) / least)
    total = sum(map(sum, groups)) / max(1, len(groups))
    longest = [max(lengths) for lengths in groups]
    note = f"{total:.0f} tokens a round on average, the longest completions {longest}"
    bound = sum(bounds) / len(bounds) if bounds else None
    return [
        Row(
            "generation, geometric lengths (mean 16, limit 256)",
            vocab,
            "tokens/s",
            True,
            cells([ours, *others], rate),
            bound,
            (Target(5.0, ("tunix",)),),
            (note,),
        ),
        Row(
            "the same, Tunix's cache at its default of 1,024 slots",
            vocab,
            "tokens/s",
            True,
            cells([ours, _renamed(default, "tunix")], rate),
            targets=(Target(8.0, ("tunix",)),),
        ),
    ]


def logps(bench: Bench, vocab: int) -> list[Row]:
    """The reference pass over 32 sequences of 32 + 64 tokens."""
    batch = bench.batch(vocab)
    request = {"do": "logps", "batch": str(batch.path)}
    names = {OURS: OURS, "tunix": "tunix", "torch": "torch"}
    columns = [bench.contestant(label, name, vocab, **request) for label, name in names.items()]
    yardstick = bench.yardstick(vocab)
    interleave(columns, 2 * bench.rounds, beside=yardstick.measure)
    targets = (Target(1.3, ("tunix",)),) if vocab == cases.SMALL_VOCAB else ()
    bound = _pass_bound(typical(yardstick.found), cases.shape(vocab), batch.lengths)
    found = cells(columns, seconds)
    row = Row("log-prob pass, 32 × 96 tokens", vocab, "s", False, found, bound, targets)
    return [_with_shared_prompts(row, bench)]


def train(bench: Bench, vocab: int) -> list[Row]:
    """Forward, backward and AdamW on the same sequences."""
    batch = bench.batch(vocab)
    request = {"do": "train_step", "batch": str(batch.path)}
    names = {OURS: OURS, "tunix": "tunix", "torch": "torch"}
    columns = [bench.contestant(label, name, vocab, **request) for label, name in names.items()]
    # Twice: the first step must spare weights that others hold, the others need not.
    yardstick = bench.yardstick(vocab)
    interleave(columns, bench.rounds, warm=2, beside=yardstick.measure)
    small = vocab == cases.SMALL_VOCAB
    targets = (Target(1.6, ("tunix",)), Target(1.0, ("torch",)), Target(0.65)) if small else ()
    bound = 3 * _pass_bound(typical(yardstick.found), cases.shape(vocab), batch.lengths)
    found = cells(columns, seconds)
    row = Row("training step, 32 × 96 tokens", vocab, "s", False, found, bound, targets)
    return [_with_shared_prompts(row, bench)]


def weights(bench: Bench, vocab: int) -> list[Row]:
    """New weights from the trainer into the engine."""
    ready = {"do": "generate", **_sampled(bench, vocab)}
    names = {OURS: OURS, "tunix": "tunix", "vllm": "vllm"}
    columns = []
    for label, name in names.items():
        one = bench.contestant(label, name, vocab, do="update_weights")
        if one.child is not None and name == OURS:
            _try(one, one.child, ready)
        columns.append(one)
    interleave(columns, bench.rounds)
    found = cells(columns, seconds)
    note = "transformers and TRL generate with the very weights that they train"
    return [Row("weight update into the engine", vocab, "s", False, found, notes=(note,))]


def _sampled(bench: Bench, vocab: int) -> dict:
    """What is sampled where nothing else is said."""
    return {"prompts": bench.prompts(vocab), "group": GROUP, "new_tokens": COMPLETION}


def _try(one: Contestant, child: Child, request: dict) -> None:
    try:
        child.ask(**request)
    except PeerError as error:
        one.failed = str(error)


def _pass_bound(limit: Limits, size: counts.Shape, lengths: list[tuple[int, int]]) -> float:
    """The least time for a forward pass: the layers and the head at their measured rates."""
    head = sum(counts.head_flops(size, completion) for _, completion in lengths)
    return limit.pass_seconds(counts.logp_flops(size, lengths) - head, head)


def _with_shared_prompts(row: Row, bench: Bench) -> Row:
    """A row of whole batches, which says what the bound is where a prompt is counted once."""
    size, share = cases.shape(row.vocab), row.share()
    if share is None:
        return row
    once = counts.shared_logp_flops(size, [(PROMPT, [COMPLETION] * GROUP)] * PROMPTS)
    less = once / counts.logp_flops(size, bench.batch(row.vocab).lengths)
    note = (
        "the bound counts a prompt for each completion, as the others compute it; counted once, "
        f"as ours does, the FLOPs are {less:.0%} and we reach {share * less:.0%} of the bound"
    )
    return replace(row, notes=(*row.notes, note))


def _renamed(one: Contestant, label: str) -> Contestant:
    return Contestant(label, one.child, one.request, one.rounds, one.failed, one.answers)


SECTIONS: dict[str, Callable[[Bench, int], list[Row]]] = {
    "step": step,
    "generation": generation,
    "long_tail": long_tail,
    "logps": logps,
    "train": train,
    "weights": weights,
}
"""By name, in the order in which they run: the first wants new processes."""
