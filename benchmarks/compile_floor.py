"""What compiling the least of a GRPO step costs: three programs in plain JAX, and nothing else.

One samples (reads the prompts, then a loop of decode steps), one gives the reference's
log-probabilities, one is loss, gradient, clipping and AdamW. There is no layer to pass through, no
check, no choice, no sharing of prompts. Prints the seconds, and CPU-seconds, of tracing and of
compiling each at the shared shape, without a cache.

    python benchmarks/compile_floor.py
    python benchmarks/compile_floor.py --vocab 32768
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cases
import jax
import jax.numpy as jnp
import tyro

THETA, EPS = cases.THETA, 1e-6
ROWS, LENGTH = cases.PROMPTS * cases.GROUP, cases.PROMPT + cases.COMPLETION


@dataclass(frozen=True)
class Arguments:
    """What is compiled.

    Attributes:
        vocab: tokens of the vocabulary.
    """

    vocab: int = cases.SMALL_VOCAB


def norm(x, scale):
    """RMSNorm."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + EPS) * scale


def rotate(x, positions):
    """Rotary positions; `[B, S, heads, d]`."""
    half = x.shape[-1] // 2
    angles = positions[..., None] * THETA ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angles)[:, :, None], jnp.sin(angles)[:, :, None]
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def layer(w, x, positions, store, mask):
    """One block; with a store, new keys and values are written at `positions` of it."""
    size = cases.SHARED
    h = norm(x, w["norm1"])
    q, k, v = ((h @ w[name]).reshape(*x.shape[:2], -1, size.head_dim) for name in ("q", "k", "v"))
    q, k = rotate(norm(q, w["qn"]), positions), rotate(norm(k, w["kn"]), positions)
    if store is not None:
        at = jnp.arange(len(x))[:, None], positions
        k, v = store[0].at[at].set(k), store[1].at[at].set(v)
        store = k, v
    grouped = q.reshape(*q.shape[:2], size.kv_heads, -1, size.head_dim)
    scores = jnp.einsum("bskgd,btkd->bkgst", grouped, k) * size.head_dim**-0.5
    weights = jax.nn.softmax(jnp.where(mask[:, None, None], scores, -jnp.inf))
    out = jnp.einsum("bkgst,btkd->bskgd", weights, v).reshape(*x.shape[:2], -1)
    x = x + out @ w["o"]
    h = norm(x, w["norm2"])
    return x + (jax.nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"], store


def hidden_states(params, tokens, positions, stores, mask):
    """All blocks and the last norm."""
    x, kept = params["embed"][tokens], []
    for w, store in zip(params["layers"], stores or [None] * len(params["layers"]), strict=True):
        x, store = layer(w, x, positions, store, mask)
        kept.append(store)
    return norm(x, params["norm"]), kept


def log_probs(params, tokens):
    """Of the completions' tokens, `[ROWS, COMPLETION]`."""
    positions = jnp.broadcast_to(jnp.arange(LENGTH), tokens.shape)
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), (ROWS, LENGTH, LENGTH))
    hidden, _ = hidden_states(params, tokens, positions, None, mask)
    logits = jax.nn.log_softmax(hidden[:, cases.PROMPT - 1 : -1] @ params["head"])
    return jnp.take_along_axis(logits, tokens[:, cases.PROMPT :, None], -1)[..., 0]


def sample(params, prompts, key):
    """Completions, in one static batch."""
    size = cases.SHARED
    shape = ROWS, LENGTH, size.kv_heads, size.head_dim
    stores = [(jnp.zeros(shape), jnp.zeros(shape)) for _ in params["layers"]]
    tokens = jnp.zeros((ROWS, LENGTH), jnp.int32).at[:, : cases.PROMPT].set(prompts)

    def read(tokens, positions, stores):
        mask = jnp.arange(LENGTH) <= positions[..., None]
        return hidden_states(params, tokens, positions, stores, mask)

    def draw(hidden, n):
        logits = hidden[:, -1] @ params["head"]
        return jax.random.categorical(jax.random.fold_in(key, n), logits)

    first = jnp.broadcast_to(jnp.arange(cases.PROMPT), (ROWS, cases.PROMPT))
    hidden, stores = read(prompts, first, stores)
    tokens = tokens.at[:, cases.PROMPT].set(draw(hidden, cases.PROMPT))

    def step(n, carry):
        tokens, stores = carry
        hidden, stores = read(tokens[:, n, None], jnp.full((ROWS, 1), n), stores)
        return tokens.at[:, n + 1].set(draw(hidden, n + 1)), stores

    return jax.lax.fori_loop(cases.PROMPT, LENGTH - 1, step, (tokens, stores))[0]


def train(params, moments, tokens, ref, advantages, count):
    """A step of GRPO with k3 in the loss: gradient, clipping, AdamW."""

    def loss(params):
        logp = log_probs(params, tokens)
        ratio = jnp.exp(logp - jax.lax.stop_gradient(logp))
        clipped = jnp.minimum(ratio * advantages, jnp.clip(ratio, 0.8, 1.2) * advantages)
        away = ref - logp
        return jnp.mean(0.04 * (jnp.exp(away) - away - 1) - clipped)

    value, gradients = jax.value_and_grad(loss)(params)
    square = sum(jnp.sum(g * g) for g in jax.tree.leaves(gradients))
    factor = 1 / jnp.maximum(1.0, jnp.sqrt(square))

    def update(p, m, v, g):
        m, v = 0.9 * m + 0.1 * factor * g, 0.999 * v + 0.001 * (factor * g) ** 2
        step = m / (1 - 0.9**count) / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-8)
        return p - 1e-6 * (step + 0.01 * p), m, v

    found = jax.tree.map(update, params, *moments, gradients)
    three = jax.tree.transpose(jax.tree.structure(params), None, found)
    return value, three[0], three[1:]


def shapes(vocab: int) -> Any:
    """The parameters."""
    size = cases.shape(vocab)

    def array(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    d, wide = size.hidden, size.heads * size.head_dim
    narrow = size.kv_heads * size.head_dim
    one = {
        "norm1": array(d), "norm2": array(d), "qn": array(size.head_dim),
        "kn": array(size.head_dim), "q": array(d, wide), "k": array(d, narrow),
        "v": array(d, narrow), "o": array(wide, d), "gate": array(d, size.inner),
        "up": array(d, size.inner), "down": array(size.inner, d),
    }  # fmt: skip
    layers = [dict(one) for _ in range(size.layers)]
    return {"embed": array(vocab, d), "layers": layers, "norm": array(d), "head": array(d, vocab)}


def timed(what: Callable[[], Any]) -> tuple[Any, float, float]:
    """What comes out, seconds and CPU-seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = what()
    return found, time.perf_counter() - wall, time.process_time() - cpu


def main(arguments: Arguments) -> None:
    """Compile the three programs and print what each takes."""
    jax.config.update("jax_enable_compilation_cache", False)
    params = shapes(arguments.vocab)
    tokens = jax.ShapeDtypeStruct((ROWS, LENGTH), jnp.int32)
    prompts = jax.ShapeDtypeStruct((ROWS, cases.PROMPT), jnp.int32)
    ref = jax.ShapeDtypeStruct((ROWS, cases.COMPLETION), jnp.float32)
    advantages, count = jax.ShapeDtypeStruct((ROWS, 1), jnp.float32), jnp.float32(1)
    key = jax.eval_shape(lambda: jax.random.key(0))
    programs = {
        "sample": (sample, (params, prompts, key)),
        "reference": (log_probs, (params, tokens)),
        "train": (train, (params, (params, params), tokens, ref, advantages, count)),
    }
    totals = [0.0, 0.0]
    for name, (function, given) in programs.items():
        lowered, traced_s, traced_cpu = timed(lambda f=function, a=given: jax.jit(f).lower(*a))
        _, compiled_s, compiled_cpu = timed(lowered.compile)
        totals = [totals[0] + traced_s + compiled_s, totals[1] + traced_cpu + compiled_cpu]
        print(
            f"{name:10} traced in {traced_s:.2f} s, compiled in {compiled_s:.2f} s "
            f"({traced_cpu:.2f} and {compiled_cpu:.2f} CPU-seconds)"
        )
    print(f"all {totals[0]:.2f} s, {totals[1]:.2f} CPU-seconds on {os.cpu_count()} cores")


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main(tyro.cli(Arguments, description=__doc__))
