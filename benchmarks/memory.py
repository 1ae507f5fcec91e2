"""Memory as XLA counts it: the programs of a step, and the objective at a large vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cases
import counts
from children import PeerError
from context import Bench
from rows import OURS, Row, Target

MIB = 2**20
OBJECTIVE = "jit_accumulate"
SLACK = 64  # MiB above the hidden states, the issue of a chunked head


def objective(bench: Bench, vocab: int) -> list[Row]:
    """What the training program needs at 2,048 actions and this vocabulary.

    Its temporaries are counted by XLA. Weights and summed gradients are arguments and not among
    them; what is left may be the hidden states of a backward pass and a chunk of logits.
    """
    size = cases.shape(vocab)
    batch = bench.batch(vocab)
    tokens = batch.rows * (batch.prompt + batch.completion)
    # Each layer keeps its input, what its norms, projections and MLP gave: counted in widths.
    hidden = 4 * tokens * size.layers * _kept_widths(size) / MIB
    bound = hidden + SLACK
    try:
        child = bench.start(OURS, vocab)
        child.ask("train_step", batch=str(batch.path))
        programs = child.ask("programs")["programs"]
        resident = child.ask("peak_memory")["mib"]
        cells: Mapping[str, Any] = {OURS: {"value": programs[OBJECTIVE]["temporary"]}}
        largest = max(programs, key=lambda name: programs[name]["temporary"])
        others = f"{largest} {programs[largest]['temporary']:.0f} MiB"
    except PeerError as error:
        cells, resident, others = {OURS: {"failed": str(error)}}, 0.0, "unknown"
    notes = (
        f"activations of {size.layers} layers {hidden:.0f} MiB, "
        f"one whole [2048, V] of logits would be {4 * 2048 * vocab / MIB:.0f} MiB; "
        f"the program with most temporaries is {others}; "
        f"the process had {resident:.0f} MiB at most",
    )
    title = "temporaries of the training program, 2,048 actions"
    return [Row(title, vocab, "MiB", False, cells, bound, (Target(1.0),), notes)]


def _kept_widths(size: counts.Shape) -> int:
    """Numbers that a layer keeps for its backward pass, a token.

    Two inputs of norms and what the norms gave (4 d), queries, keys, values before and after
    norm and rotation, the attention's output, and of the MLP gate, up and their product.
    """
    queries, keys = size.heads * size.head_dim, size.kv_heads * size.head_dim
    return 4 * size.hidden + 4 * queries + 4 * keys + 3 * size.inner
