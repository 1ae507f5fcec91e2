"""The same counts carried to a 7B model on many accelerators, on paper.

Nothing here is measured: the work is counted by `counts`, the accelerators are as their makers'
data sheets have them, and how much of a peak is reached is assumed and said.

    python benchmarks/paper.py      # prints the tables that docs/performance.md shows
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import counts
import numpy as np
from counts import Shape

SEVEN_B = Shape(
    layers=28,
    hidden=3584,
    heads=28,
    kv_heads=4,
    head_dim=128,
    inner=18_944,
    vocab=152_064,
)
"""The sizes of Qwen2.5-7B."""

HALF, FULL = 2, 4  # bytes of a bfloat16 and a float32
NODE = 8  # chips between which weights are sharded
TOKENS_A_PASS = 16_384  # tokens that a chip takes through a forward and backward pass at a time


@dataclass(frozen=True)
class Chip:
    """An accelerator's data sheet.

    Attributes:
        name: of it.
        flops: dense bfloat16 operations a second.
        memory: bytes a second.
        size: bytes.
        near: bytes a second and direction to the chips of its node.
        far: to the others.
    """

    name: str
    flops: float
    memory: float
    size: float
    near: float
    far: float


H100 = Chip("H100 SXM", 989e12, 3.35e12, 80e9, 450e9, 50e9)
V5P = Chip("TPU v5p", 459e12, 2.765e12, 95e9, 600e9, 600e9)

MATMUL, MEMORY, LINK = 0.5, 0.7, 0.8  # the shares of those peaks that are taken for reached
LATENCY = 10e-6  # seconds of a reduction between the chips of a node, however small


@dataclass(frozen=True)
class Work:
    """A GRPO step.

    Attributes:
        prompts: P.
        group: G.
        prompt: tokens of each.
        mean: of a completion's length, geometric.
        limit: longest completion.
    """

    prompts: int = 256
    group: int = 8
    prompt: int = 512
    mean: int = 1024
    limit: int = 4096

    def lengths(self, seed: int = 0) -> list[list[int]]:
        """Lengths of the completions, a list a prompt."""
        drawn = np.random.default_rng(seed).geometric(1 / self.mean, (self.prompts, self.group))
        return np.minimum(drawn, self.limit).tolist()


@dataclass(frozen=True)
class Part:
    """One part of a step on one chip, the busiest.

    Attributes:
        flops: operations.
        memory: bytes of its own memory.
        link: bytes over its links, by their speed (bytes a second).
        waits: seconds of latency that no speed takes away.
        overlaps: whether the links work while it computes.
    """

    flops: float = 0.0
    memory: float = 0.0
    link: Sequence[tuple[float, float]] = ()
    waits: float = 0.0
    overlaps: bool = False

    @property
    def link_bytes(self) -> float:
        """Over all links."""
        return sum(size for size, _ in self.link)

    def seconds(self, chip: Chip) -> float:
        """Time at the assumed shares: the slower of operations and memory, then the links."""
        own = max(self.flops / (MATMUL * chip.flops), self.memory / (MEMORY * chip.memory))
        links = sum(size / (LINK * speed) for size, speed in self.link)
        return (max(own, links) if self.overlaps else own + links) + self.waits


def tensor_degree(shape: Shape, chips: int) -> int:
    """Chips that an engine's weights are split over: one where there are few, else several.

    A step of decoding reads all weights for as many rows as there are. With many replicas each
    has few rows, and the reading is all that it does: then more chips should share it. Heads of
    keys stay whole, so that they are as many as heads at most.
    """
    return 1 if chips <= NODE else math.gcd(NODE, shape.kv_heads)


def generation(shape: Shape, work: Work, chip: Chip, chips: int) -> Part:
    """Sampling on the replica that takes longest."""
    tensor = tensor_degree(shape, chips)
    replicas = chips // tensor
    lengths = work.lengths()
    share = work.prompts // replicas
    found = [
        counts.generation(
            shape,
            [(work.prompt, one) for one in lengths[r * share : (r + 1) * share]],
            bytes_per_number=HALF,
        )
        for r in range(replicas)
    ]
    slowest = max(found, key=lambda one: one.decode_bytes)
    flops = (slowest.prefill_flops + slowest.decode_flops) / tensor
    if tensor == 1:
        return Part(flops, slowest.decode_bytes)
    # Two reductions a layer, of the rows that still grow: latency, and a few bytes.
    reductions = 2 * shape.layers * slowest.decode_steps
    sampled = sum(map(sum, lengths)) / replicas
    moved = 2 * 2 * shape.layers * sampled * shape.hidden * HALF * (tensor - 1) / tensor
    return Part(
        flops, slowest.decode_bytes / tensor, [(moved, chip.near)], waits=LATENCY * reductions
    )


def reference(shape: Shape, work: Work, chip: Chip, chips: int) -> Part:
    """The log-probabilities under the reference: weights gathered once a pass."""
    flops = counts.logp_flops(shape, _sequences(work)) / chips
    gathered = _passes(work, chips) * _gather(shape)
    return Part(flops, link=[(gathered, chip.near)], overlaps=True)


def training(shape: Shape, work: Work, chip: Chip, chips: int) -> Part:
    """Forward and backward: weights gathered twice, gradients scattered, a pass.

    With more chips than a node holds, each node has all weights between its chips, and the nodes
    add up their gradients once.
    """
    flops = counts.train_flops(shape, _sequences(work)) / chips
    scattered = counts.parameters(shape) * FULL * (NODE - 1) / NODE
    inside = _passes(work, chips) * (2 * _gather(shape) + scattered)
    link = [(inside, chip.near)]
    if chips > NODE:
        nodes = chips // NODE
        summed = 2 * counts.parameters(shape) / NODE * FULL * (nodes - 1) / nodes
        link.append((summed, chip.far))
    return Part(flops, link=link, overlaps=True)


def optimizer(shape: Shape, work: Work, chip: Chip, chips: int) -> Part:
    """AdamW on the chip's shard."""
    del work, chip, chips
    return Part(memory=counts.adamw_bytes(shape) / NODE)


def transfer(shape: Shape, work: Work, chip: Chip, chips: int) -> Part:
    """Weights from the trainer's shards to the engine's layout, in bfloat16."""
    del work
    size = counts.parameters(shape) * HALF / tensor_degree(shape, chips)
    return Part(link=[(size * (NODE - 1) / NODE, chip.near)])


PARTS = {
    "generation": generation,
    "reference pass": reference,
    "training": training,
    "optimizer": optimizer,
    "weights to the engine": transfer,
}
SETUPS = ((H100, 8), (H100, 256), (V5P, 8), (V5P, 256))


def memory_bytes(shape: Shape, work: Work, chips: int) -> dict[str, float]:
    """What lies on a chip: trainer and engine side by side."""
    tensor = tensor_degree(shape, chips)
    rows = work.prompts * work.group // (chips // tensor)
    own = counts.kv_numbers(shape) * HALF * rows * work.mean
    prompts = counts.kv_numbers(shape) * HALF * (rows // work.group) * work.prompt
    return {
        "weights, gradients and moments (float32, sharded)": (
            4 * FULL * counts.parameters(shape) / NODE
        ),
        "the engine's weights (bfloat16)": HALF * counts.parameters(shape) / tensor,
        "keys and values at mean length": (own + prompts) / tensor,
        "inputs of the layers (bfloat16, the rest recomputed)": (
            HALF * TOKENS_A_PASS * shape.hidden * shape.layers
        ),
    }


def tables(shape: Shape = SEVEN_B, work: Work | None = None) -> str:
    """Counts, seconds and memory as Markdown."""
    work = work or Work()
    names = [f"{chips} × {chip.name}" for chip, chips in SETUPS]
    found = {
        name: [part(shape, work, chip, chips) for chip, chips in SETUPS]
        for name, part in PARTS.items()
    }
    head = "|---|" + "---|" * len(SETUPS)
    lines = ["| a chip's work: PFLOP, TB of memory, GB over links | " + " | ".join(names) + " |"]
    lines += [head]
    for name, parts in found.items():
        lines.append(f"| {name} | " + " | ".join(map(_counts, parts)) + " |")
    seconds = {
        name: [part.seconds(chip) for part, (chip, _) in zip(parts, SETUPS, strict=True)]
        for name, parts in found.items()
    }
    totals = [sum(column) for column in zip(*seconds.values(), strict=True)]
    lines += ["", "| seconds | " + " | ".join(names) + " |", head]
    for name, values in seconds.items():
        shown = [f"{v:.2f} ({100 * v / t:.0f}%)" for v, t in zip(values, totals, strict=True)]
        lines.append(f"| {name} | " + " | ".join(shown) + " |")
    lines.append("| **the step** | " + " | ".join(f"{total:.1f}" for total in totals) + " |")
    lines += ["", "| GB on a chip | " + " | ".join(names) + " |", head]
    held = [memory_bytes(shape, work, chips) for _, chips in SETUPS]
    for name in held[0]:
        lines.append(f"| {name} | " + " | ".join(f"{one[name] / 1e9:.1f}" for one in held) + " |")
    return "\n".join(lines) + "\n"


def _sequences(work: Work) -> list[tuple[int, int]]:
    return [(work.prompt, length) for group in work.lengths() for length in group]


def _passes(work: Work, chips: int) -> float:
    """Passes of `TOKENS_A_PASS` tokens that a chip takes its share of the batch in."""
    tokens = sum(prompt + completion for prompt, completion in _sequences(work))
    return max(1.0, -(-tokens // (chips * TOKENS_A_PASS)))


def _gather(shape: Shape) -> float:
    """Bytes that reach a chip when a node's shards are put together in bfloat16."""
    return counts.parameters(shape) * HALF * (NODE - 1) / NODE


def _counts(part: Part) -> str:
    return f"{part.flops / 1e15:.1f}, {part.memory / 1e12:.1f}, {part.link_bytes / 1e9:.0f}"


if __name__ == "__main__":
    print(tables())
