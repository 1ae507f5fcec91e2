"""Each library's aggregation, and one stored case through ratio, loss and weights."""

import math
from functools import partial

import jax
import jax.numpy as jnp
from zootomy.blocks import aggregation, correction, ratio
from zootomy.blocks import policy_loss as pl
from zootomy.blocks.masking import masked_mean

FAMILY = "policy_loss"
INF = {"clamp": math.inf}


# -- each library's aggregation ----------------------------------------------------------------


def verl(mask, params):
    return {
        "token-mean": aggregation.token_mean,
        "seq-mean-token-mean": aggregation.sequence_mean_token_mean,
        "seq-mean-token-sum": aggregation.sequence_mean_token_sum,
    }[params["loss_agg_mode"]](mask, None)


def skyrl(mask, params):
    if params.get("loss_reduction") in (None, "None"):
        return mask.astype(jnp.float32)  # a plain sum
    if params["loss_reduction"] == "token_mean":
        return aggregation.token_mean(mask, None)
    return aggregation.sequence_mean_token_mean(mask, None, count_empty=True)


def tunix(mask, params):
    if params["loss_agg_mode"] == "token-mean":
        return aggregation.token_mean(mask, None)
    return aggregation.sequence_mean_token_mean(mask, None)


def trl(mask, params):
    return aggregation.sequence_mean_token_mean(mask, None, count_empty=True)


def token_mean(mask, params):
    return aggregation.token_mean(mask, None)


def row_mean(mask, params):
    return aggregation.sequence_mean_token_mean(mask, None)


def openrlhf(mask, params):
    return token_mean(mask, params) if params["token_level_loss"] else row_mean(mask, params)


# -- one case through ratio, loss and weights --------------------------------------------------


def tokens(case, advantages=None):
    """logp, old_logp, advantages `[N, T]` and mask, as jax arrays."""
    logp = jnp.asarray(case.inputs["logp"])
    old = case.inputs.get("old_logp", case.inputs.get("rollout_logp"))
    given = jnp.asarray(case.inputs["advantages"] if advantages is None else advantages)
    if given.ndim == 1:
        given = given[:, None]
    given = jnp.broadcast_to(given, logp.shape)
    return logp, None if old is None else jnp.asarray(old), given, jnp.asarray(case.inputs["mask"])


def run(case, block, weights, ratio_block=ratio.token, old=None, advantages=None):
    """Loss, gradient by logp, and the per-token output of a loss under given weights."""
    logp, default_old, a, mask = tokens(case, advantages)
    old = default_old if old is None else jnp.asarray(old)

    def total(logp):
        out = block(ratio_block(logp, old, mask), a, logp, old, mask)
        return (weights * out.loss).sum(), out

    (value, out), slope = jax.value_and_grad(total, has_aux=True)(logp)
    return value, slope, out


def check(parity, file, case, value, slope):
    parity.close(file, value, case.outputs["loss"])
    parity.close(file, slope, case.grads["logp"])


def clips(params):
    return {"clip_low": params["clip_low"], "clip_high": params["clip_high"]}


def with_optional_dual(params, name, **more):
    c = params[name]
    if c is None:
        return partial(pl.ppo_clip, **clips(params), **more)
    return partial(pl.dual_clip, **clips(params), clip_dual=c, **more)


def row_advantages(case):
    """AReaL gives every token of a sequence the mean of its advantages."""
    mask = jnp.asarray(case.inputs["mask"])
    mean = masked_mean(jnp.asarray(case.inputs["advantages"]), mask, axis=1)
    return jnp.broadcast_to(mean[:, None], mask.shape)


def areal_correction(old, rollout, mask, params):
    """AReaL's rejection sampling, as in the tests of the corrections."""
    low, high = params["lower"], params["upper"]
    metric, by_token = params["metric"].removeprefix("kl_"), params["level"] == "token"
    if params["action"] == "clamp":
        block = correction.tis if by_token else partial(correction.sequence_tis, reduce="mean")
        return block(old, rollout, mask, low=low or 0.0, high=high, **INF)
    return correction.rejection(
        old,
        rollout,
        mask,
        statistic=metric,
        level="token" if by_token else f"sequence_{params['agg']}",
        low=low,
        high=high,
        reverse=True,
        weight="sequence" if metric == "ratio" and not by_token else "token",
        **INF,
    )
