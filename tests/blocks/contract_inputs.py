"""Inputs for any block of any slot, made from the registry's signatures; no block is named here."""

from __future__ import annotations

import itertools
import types
import typing

import jax
import jax.numpy as jnp
import numpy as np
from zootomy.blocks.types import RewardInfo
from zootomy.registry import ZootomyError, describe, names, slot, slots

# What a block cannot be called without, because only the user or the learner knows it.
REQUIRED: dict[tuple[str, str], dict] = {
    ("reward_shaping", "overlong_penalty"): {"length": 6, "buffer": 3},
}
# Settings under which a hyperparameter matters, where a search would take long to find them.
HINTS: dict[tuple[str, str, str], dict] = {
    ("advantage", "vapo_gae", "lam"): {"alpha": None},
    ("policy_loss", "clip_cov", "cov_high"): {"cov_low": 0.02, "fraction": 0.9},
    ("policy_loss", "clip_cov", "cov_low"): {"cov_low": 0.02, "fraction": 0.9},
    ("policy_loss", "clip_cov", "fraction"): {"cov_low": 0.02},
    ("preference_loss", "f_dpo", "alpha"): {"divergence": "alpha"},
    ("policy_loss", "dppo", "ratio_cap"): {"form": "logp", "delta_low": 1.0, "delta_high": 1.0},
}
# Blocks whose log-probabilities are those of the whole vocabulary, `[N, T, V]`.
OVER_VOCABULARY = {("kl_estimator", "full"), ("kl_estimator", "top_k")}
# Blocks whose scores are a mean and a log of the deviation, `[B, 2]`.
DISTRIBUTIONS = {("reward_loss", "purm")}
DIFFERENTIABLE = ("log_ratio", "logp", "entropy", "values", "chosen_logp", "rejected_logp",
                  "chosen", "rejected")  # fmt: skip
BLOCKS = [
    (place.name, name)
    for place in slots()
    if not place.choices and place.name != "controller"
    for name in names(place.name)
]
TOKEN_BLOCKS = [
    key
    for key in BLOCKS
    if {"mask"} & {*slot(key[0]).inputs, *describe(*key).extras} and key[0] != "aggregation"
]


def ragged_mask(n: int, t: int) -> np.ndarray:
    """A full row, a row of one action, and rows with holes."""
    mask = np.ones((n, t), np.int32)
    if n > 1:
        mask[1, 1:] = 0
    for row in range(2, n):
        mask[row, row % t] = 0
        mask[row, t - row % 2 :] = 0
    return mask


def token_pool(seed: int, n: int, t: int, scale: float) -> dict:
    """Every array that a block on tokens can ask for; `scale` stretches the log-ratios."""
    rng = np.random.default_rng(seed)

    def noise(*shape):
        return rng.normal(size=shape).astype(np.float32)

    logp = -np.abs(noise(n, t)) - 0.1
    log_ratio = 0.3 * scale * noise(n, t)
    old = logp - log_ratio
    values = noise(n, t)
    return {
        "logp": logp,
        "old_logp": old,
        "ref_logp": logp - 0.3 * scale * noise(n, t),
        "rollout_logp": old - 0.2 * scale * noise(n, t),
        "log_ratio": log_ratio,
        "entropy": np.abs(noise(n, t)),
        "sum_pi_squared": rng.uniform(0.1, 0.9, (n, t)).astype(np.float32),
        "advantages": noise(n, t),
        "token_rewards": noise(n, t),
        "values": values,
        "old_values": values + 0.3 * noise(n, t),
        "returns": noise(n, t) * scale,
        "mask": ragged_mask(n, t),
        "group_ids": np.arange(n) // 2,
        "turn_ids": np.cumsum(rng.integers(0, 2, (n, t)), axis=1),
        "truncated": np.arange(n) % 2 == 1,
        "next_values": noise(n),
    }


def reward_pool(seed: int, p: int, g: int, scale: float) -> dict:
    """Rewards of P groups of G completions, one of them invalid."""
    rng = np.random.default_rng(seed)
    valid = np.ones((p, g), bool)
    if p * g > 1:
        valid[-1, -1] = False
    info = RewardInfo(
        valid=valid,
        lengths=rng.integers(1, 12, (p, g)),
        truncated=rng.random((p, g)) < 0.5,
        components=rng.normal(size=(2, p, g)).astype(np.float32),
        baseline=rng.normal(size=p).astype(np.float32),
        scale=rng.uniform(0.5, 2, p).astype(np.float32),
        weights=rng.uniform(0.5, 2, 2).astype(np.float32),
    )
    return {"rewards": (scale * rng.normal(size=(p, g))).astype(np.float32), "info": info,
            "valid": valid}  # fmt: skip


def pair_pool(seed: int, b: int, scale: float) -> dict:
    """Log-probabilities and scores of B pairs."""
    rng = np.random.default_rng(seed)
    pool = {
        name: (-3 - scale * np.abs(rng.normal(size=b))).astype(np.float32)
        for name in ("chosen_logp", "rejected_logp", "ref_chosen_logp", "ref_rejected_logp")
    }
    scores = {
        name: (scale * rng.normal(size=b)).astype(np.float32) for name in ("chosen", "rejected")
    }
    return {**pool, **scores, "lengths": rng.integers(1, 9, (b, 2)),
            "margin": rng.uniform(0.1, 1, b).astype(np.float32)}  # fmt: skip


def make(
    key: tuple[str, str],
    seed: int = 0,
    n: int = 4,
    t: int = 5,
    scale: float = 1.0,
    sparse: bool = False,
    wide: bool = False,
) -> dict:
    """The arrays that a block takes, by name.

    Args:
        key: the block.
        seed: of the random numbers.
        n: rows: sequences, prompts or pairs.
        t: columns: tokens or completions a prompt.
        scale: stretches log-ratios and rewards.
        sparse: no action but in the first row, and a group with a single valid completion.
        wide: log-probabilities of a whole vocabulary, `[N, T, V]`.
    """
    place = slot(key[0])
    pools = {
        "reward_shaping": lambda: reward_pool(seed, n, t, scale),
        "group_filter": lambda: reward_pool(seed, n, t, scale),
        "preference_loss": lambda: pair_pool(seed, n, scale),
        "reward_loss": lambda: pair_pool(seed, n, scale),
    }
    pool = pools.get(place.name, lambda: token_pool(seed, n, t, scale))()
    if key in OVER_VOCABULARY or wide:
        rng = np.random.default_rng(seed)
        for name in ("logp", "ref_logp"):
            logits = scale * rng.normal(size=(n, t, 3))
            pool[name] = np.asarray(jax.nn.log_softmax(logits), np.float32)
    if sparse and "mask" in pool:
        pool["mask"][1:] = 0
    if sparse and "info" in pool:
        pool["valid"][0, 1:] = False
    if key in DISTRIBUTIONS:
        for name in ("chosen", "rejected"):
            pool[name] = np.stack([pool[name], -0.1 * np.abs(pool[name])], axis=1)
    wanted = (*place.inputs, *describe(*key).extras)
    return jax.tree.map(jnp.asarray, {name: pool[name] for name in wanted})


def call(key: tuple[str, str], data: dict, **hyper) -> list[jax.Array]:
    """The block's outputs, flat; what is True or False becomes 1 or 0."""
    info = describe(*key)
    inputs = [data[name] for name in slot(key[0]).inputs]
    extras = {name: data[name] for name in info.extras}
    out = info.function(*inputs, **extras, **{**REQUIRED.get(key, {}), **hyper})
    return jax.tree.leaves(out)


def call_with_gradients(key: tuple[str, str], data: dict, **hyper) -> list[np.ndarray]:
    """Outputs, then the gradients of a fixed weighted sum of them."""
    wrt = {name: data[name] for name in DIFFERENTIABLE if name in data}

    def total(part):
        leaves = call(key, {**data, **part}, **hyper)
        kinds = [leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]
        # the same weights for every row, so that a permutation of rows permutes the gradient
        weights = [
            1.5 + jnp.cos(jnp.arange(leaf.shape[-1] if leaf.ndim > 1 else 1)) for leaf in kinds
        ]
        return sum((w * leaf).sum() for w, leaf in zip(weights, kinds, strict=True)) + 0.0, leaves

    if not wrt:
        return [np.asarray(leaf, np.float32) for leaf in call(key, data, **hyper)]
    slope = jax.grad(total, has_aux=True)
    gradients, leaves = slope(wrt)
    return [np.asarray(leaf, np.float32) for leaf in (*leaves, *jax.tree.leaves(gradients))]


def corrupt(data: dict, bad: float) -> dict:
    """The same data with `bad` at every masked entry of every float array on tokens."""
    mask = data["mask"] > 0

    def spoil(x):
        if x.ndim < 2 or not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        keep = mask if x.ndim == 2 else mask[..., None]
        return jnp.where(keep, x, bad)

    return {name: x if name == "mask" else spoil(x) for name, x in data.items()}


def other_values(annotation, default) -> list:
    """Values to try in place of a hyperparameter's default."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        parts = [part for part in typing.get_args(annotation) if part is not type(None)]
        found = [value for part in parts for value in other_values(part, default)]
        return ([None] if default is not None else []) + found
    if origin is typing.Literal:
        return [choice for choice in typing.get_args(annotation) if choice != default]
    if annotation is bool:
        return [not default]
    if annotation is str:
        return ["leave_one_out"]  # a word stands for a block of the same slot
    if annotation is int:
        start = default or 0
        return [start + 1, start + 2, start + 4, 2 * start + 20, max(start - 1, 0)]
    if annotation is float:
        start = 0.0 if default is None or not np.isfinite(default) else default
        steps = [
            2 * start,
            start / 2,
            start + 0.1,
            start + 1,
            start - 0.1,
            0.02,
            0.5,
            0.9,
            4.0,
            30.0,
            -9.0,
        ]
        return [value for value in steps if value != default]
    raise AssertionError(f"no values known for {annotation}")


def companions(key: tuple[str, str], name: str) -> list[dict]:
    """Settings of the other hyperparameters under which one might come to matter."""
    hint = HINTS.get((*key, name))
    found: list[dict] = [{}] if hint is None else [hint, {}]
    for other, entry in describe(*key).hyperparameters.items():
        if other != name:
            values = other_values(entry.annotation, entry.default)
            found.extend({other: value} for value in values)
    pairs = [{**a, **b} for a, b in itertools.combinations(found[1:], 2) if not set(a) & set(b)]
    return found + pairs[:200]


def attempt(key: tuple[str, str], data: dict, **hyper) -> list[np.ndarray] | None:
    """Outputs and gradients, or None where the block refuses the values."""
    try:
        return call_with_gradients(key, data, **hyper)
    except ZootomyError:
        return None


def same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    """Whether two results are the same, NaN being equal to NaN."""
    return len(a) == len(b) and all(
        x.shape == y.shape and np.array_equal(x, y, equal_nan=True)
        for x, y in zip(a, b, strict=True)
    )
