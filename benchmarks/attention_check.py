"""The attention kernels of this machine against each other: value, gradient and time.

Packed rows of several sequences and padding, grouped key heads, float32 and bfloat16. Every kernel
that the platform has is compared with the plain formula in float32, and timed forward and forward
with backward. Prints JSON; exits with 1 where a kernel is further off than its type explains.

    python benchmarks/attention_check.py                  # under two minutes on one accelerator
    python benchmarks/attention_check.py --lengths 256 --rows 2
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from zootomy.models.attention import packed_mask
from zootomy.models.kernels import Kernel, choose_kernel, packed_attention
from zootomy.models.slot_attention import attend_slots

# Largest error, as a share of the largest entry, that the type's rounding explains.
TOLERANCE = {"float32": 5e-3, "bfloat16": 4e-2}
NAMES = ("out", "d_q", "d_k", "d_v")


@dataclass(frozen=True)
class Arguments:
    """What is compared.

    Attributes:
        lengths: row lengths, in tokens.
        rows: rows of the shortest length; longer ones have fewer, at the same number of tokens.
        heads: query heads.
        kv_heads: key heads.
        head_dim: width of a head.
        repeats: timed calls, of which the median counts.
    """

    lengths: tuple[int, ...] = (512, 2048)
    rows: int = 16
    heads: int = 16
    kv_heads: int = 8
    head_dim: int = 128
    repeats: int = 10


def kernels(dtype: Any, head_dim: int) -> list[Kernel]:
    """Those that run here at full speed."""
    found: list[Kernel] = ["xla"]
    best = choose_kernel("auto", dtype, head_dim)
    return found if best == "xla" else [*found, best]


def inputs(arguments: Arguments, rows: int, length: int) -> tuple[list[jax.Array], jax.Array]:
    """Queries, keys, values and a cotangent in float32, and segments with padding at the end."""
    rng = np.random.default_rng(length)
    heads = (arguments.heads, arguments.kv_heads, arguments.kv_heads, arguments.heads)
    arrays = [
        jnp.asarray(rng.normal(size=(rows, length, n, arguments.head_dim)), jnp.float32)
        for n in heads
    ]
    segments = np.zeros((rows, length), np.int32)
    for row in segments:
        cuts = np.sort(rng.choice(np.arange(1, length), 4, replace=False))
        for segment, (start, stop) in enumerate(zip([0, *cuts[:-1]], cuts, strict=True), start=1):
            row[start:stop] = segment
    return arrays, jnp.asarray(segments)


def plain(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array) -> jax.Array:
    """The formula, differentiated by JAX."""
    k, v = jnp.transpose(k, (0, 2, 3, 1)), jnp.swapaxes(v, 1, 2)
    return attend_slots(q, k, v, packed_mask(segments))


def by(kernel: Kernel) -> Callable[..., jax.Array]:
    """One kernel as a function of the same arguments."""
    return lambda q, k, v, s: packed_attention(q, k, v, s, packed_mask(s), kernel)


def forward_backward(function: Callable[..., jax.Array]) -> Callable[..., Any]:
    """Output and gradients of the real tokens, compiled."""

    @jax.jit
    def run(q, k, v, cotangent, segments):
        real = (segments > 0)[:, :, None, None]
        out, back = jax.vjp(lambda q, k, v: function(q, k, v, segments), q, k, v)
        found = out, *back(jnp.where(real, cotangent, 0).astype(out.dtype))
        return [jnp.where(real, x.astype(jnp.float32), 0) for x in found]

    return run


def milliseconds(run: Callable[[], Any], repeats: int) -> float:
    """Median time of a call that has been compiled."""
    jax.block_until_ready(run())
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(run())
        times.append((time.perf_counter() - began) * 1e3)
    return round(statistics.median(times), 3)


def compare(arguments: Arguments, dtype: str, length: int) -> list[dict[str, Any]]:
    """One record a kernel."""
    rows = max(1, arguments.rows * min(arguments.lengths) // length)
    arrays, segments = inputs(arguments, rows, length)
    # What bfloat16 cannot hold is taken off beforehand, so that only the arithmetic differs.
    arrays = [x.astype(dtype).astype(jnp.float32) for x in arrays]
    with jax.default_matmul_precision("highest"):
        truth = [np.asarray(x) for x in forward_backward(plain)(*arrays, segments)]
    narrow = [x.astype(dtype) for x in arrays]
    records = []
    for kernel in kernels(dtype, arguments.head_dim):
        run, only_forward = forward_backward(by(kernel)), jax.jit(by(kernel))
        found = [np.asarray(x) for x in run(*narrow, segments)]
        errors = {
            name: float(np.abs(one - other).max() / np.abs(other).max())
            for name, one, other in zip(NAMES, found, truth, strict=True)
        }
        records.append(
            {
                "kernel": kernel,
                "dtype": dtype,
                "rows": rows,
                "length": length,
                "errors": errors,
                "right": max(errors.values()) <= TOLERANCE[dtype],
                "forward_ms": milliseconds(
                    lambda f=only_forward: f(*narrow[:3], segments), arguments.repeats
                ),
                "forward_backward_ms": milliseconds(
                    lambda f=run: f(*narrow, segments), arguments.repeats
                ),
            }
        )
    return records


def main(arguments: Arguments) -> int:
    """Compare all and print; 1 where a kernel is wrong."""
    records = [
        record
        for dtype in TOLERANCE
        for length in arguments.lengths
        for record in compare(arguments, dtype, length)
    ]
    device = jax.devices()[0]
    machine = {"platform": device.platform, "device": device.device_kind, "jax": jax.__version__}
    print(json.dumps({"machine": machine, "records": records}, indent=2))
    return 0 if all(record["right"] for record in records) else 1


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Arguments, description=__doc__)))
