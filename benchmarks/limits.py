"""The machine: what it is, and how fast it multiplies and copies."""

from __future__ import annotations

import datetime
import os
import platform
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cases import COMPLETION, GROUP, PROMPT, PROMPTS
from children import Child, PeerError
from counts import Generation, Shape, head_weights, layer_weights

GIGA = 1e9
RAM_BYTES = 256 << 20  # an array that no cache holds
REPEATS = 3
SECONDS = 0.03  # a product is measured that long, each time
BLOCK = 2048  # columns of a wide product that may be taken at a time


def describe() -> dict[str, Any]:
    """The machine in words, the day, and the versions that decide on speed."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
    }


@dataclass(frozen=True)
class Limits:
    """What bounds the work, as it was when it was measured.

    Attributes:
        wide: operations a second in the products of a pass over all tokens of a batch.
        skinny: in those of a decode step.
        head: in the head over the completions of a batch.
        skinny_head: in the head of a decode step.
        ram: bytes copied a second (read and written), arrays larger than any cache.
        near: the same with arrays together as large as weights and cache of the shared shape.
    """

    wide: float
    skinny: float
    head: float
    skinny_head: float
    ram: float
    near: float

    def as_dict(self) -> dict[str, float]:
        """By name."""
        return asdict(self)

    def pass_seconds(self, body: float, head: float) -> float:
        """The least time for operations of the layers and of the head over a whole batch."""
        return body / self.wide + head / self.head

    def generation_seconds(self, shape: Shape, work: Generation, *, rows: int) -> float:
        """The least time for a call of an engine: prefill, then the slower of FLOPs and bytes.

        Args:
            shape: the model.
            work: what `counts.generation` says.
            rows: completions that could be decoded side by side: the products of a step are at
                most that tall. Beyond a batch's, the rate of whole passes bounds theirs.
        """
        share = head_weights(shape) / (head_weights(shape) + shape.layers * layer_weights(shape))
        few = rows <= PROMPTS * GROUP
        body, head = (self.skinny, self.skinny_head) if few else (self.wide, self.head)
        rate = 1 / (share / head + (1 - share) / body)
        decode = max(work.decode_flops / rate, work.decode_bytes / self.near)
        return work.prefill_flops / self.wide + decode


class Yardstick:
    """The machine's limits, measured in turn with what they bound: both see the same hour.

    Args:
        shape: whose products are measured.
        children: workers that have `matmul_rates`.
        cores: threads that copy.
    """

    def __init__(self, shape: Shape, children: list[Child], cores: int):
        self._measured = shape, children, cores
        self.found: list[Limits] = []
        """One entry a measurement."""

    def measure(self) -> Limits:
        """Measure once more."""
        self.found.append(measure(*self._measured))
        return self.found[-1]


def typical(found: Sequence[Limits]) -> Limits:
    """The median of several measurements, limit by limit."""
    rates = zip(*(astuple(one) for one in found), strict=True)
    return Limits(*map(statistics.median, rates))


def measure(shape: Shape, children: list[Child], cores: int) -> Limits:
    """Measure with every library that is there; the best of them is the machine's.

    Args:
        shape: whose products are measured.
        children: workers that have `matmul_rates`.
        cores: threads that copy.
    """
    tokens = PROMPTS * GROUP * (PROMPT + COMPLETION)
    actions = PROMPTS * GROUP * COMPLETION
    rows = PROMPTS * GROUP
    wide, skinny = _products(shape, tokens), _products(shape, rows)
    heads = [(actions, shape.hidden, shape.vocab), (rows, shape.hidden, shape.vocab)]
    rates = _best_rates([*wide, *skinny, *heads], children)
    count = len(wide)
    return Limits(
        wide=_together(wide, rates[:count]),
        skinny=_together(skinny, rates[count : 2 * count]),
        head=rates[-2],
        skinny_head=rates[-1],
        ram=copy_rate(RAM_BYTES, cores),
        near=copy_rate(4 * shape.layers * layer_weights(shape), cores),
    )


def copy_rate(size: int, cores: int) -> float:
    """Bytes read and written a second, all cores copying: the best of several."""
    chunk = size // cores // 8
    pairs = [(np.ones(chunk), np.empty(chunk)) for _ in range(cores)]

    def copy(pair: tuple[np.ndarray, np.ndarray], times: int) -> None:
        for _ in range(times):
            np.copyto(pair[1], pair[0])

    times = max(1, (RAM_BYTES // size) // 2)
    best = float("inf")
    for _ in range(REPEATS):
        threads = [threading.Thread(target=copy, args=(pair, times)) for pair in pairs]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        best = min(best, time.perf_counter() - began)
    return 2 * 8 * chunk * cores * times / best


def _products(shape: Shape, rows: int) -> list[tuple[int, int, int]]:
    """The products of a layer, as [M, K] x [K, N]."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    d, m = shape.hidden, shape.inner
    return [
        (rows, d, queries),
        (rows, d, keys),
        (rows, d, keys),
        (rows, queries, d),
        (rows, d, m),
        (rows, d, m),
        (rows, m, d),
    ]


def _best_rates(shapes: list[tuple[int, int, int]], children: list[Child]) -> list[float]:
    """Operations a second of each product, by whichever library and way is fastest at it."""
    different = sorted({way for one in shapes for way in _ways(one)})
    found: dict[tuple[int, int, int], float] = dict.fromkeys(different, 0.0)
    for child in children:
        try:
            rates = child.ask("matmul_rates", shapes=different, each=SECONDS)["rates"]
        except PeerError:
            continue
        for one, rate in zip(different, rates, strict=True):
            found[one] = max(found[one], rate * GIGA)
    return [max(found[way] for way in _ways(one)) for one in shapes]


def _ways(product: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    """A product, its transpose and, where it is wide, the blocks that make it up."""
    rows, depth, columns = product
    ways = [product, (columns, depth, rows)]
    return [*ways, (rows, depth, BLOCK)] if columns > BLOCK else ways


def _together(shapes: list[tuple[int, int, int]], rates: list[float]) -> float:
    """The rate of several products one after another."""
    work = [2.0 * m * k * n for m, k, n in shapes]
    return sum(work) / sum(w / r for w, r in zip(work, rates, strict=True))


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"
