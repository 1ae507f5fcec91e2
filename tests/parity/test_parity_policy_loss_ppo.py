"""PPO's clip, by token, against the numbers of other libraries."""

from functools import partial

import jax
import jax.numpy as jnp
from policy_loss_peers import (
    FAMILY,
    INF,
    check,
    clips,
    openrlhf,
    run,
    skyrl,
    token_mean,
    tokens,
    trl,
    tunix,
    verl,
    with_optional_dual,
)
from zootomy.blocks import kl_estimator
from zootomy.blocks import policy_loss as pl
from zootomy.blocks.masking import masked_mean

# -- PPO ---------------------------------------------------------------------------------------


def test_ppo_clip_verl(parity):
    file = f"{FAMILY}/ppo_clip__verl"
    for case in parity.cases(file):
        mask = jnp.asarray(case.inputs["mask"])
        block = with_optional_dual(case.params, "clip_ratio_c")
        drift = case.inputs.get("rollout_is_weights", 1.0)
        value, slope, out = run(case, block, verl(mask, case.params) * drift)
        check(parity, file, case, value, slope)
        parity.close(file, out.loss * drift, case.outputs["per_token"], where=mask)
        metrics = case.outputs["metrics"]
        parity.close(file, masked_mean(out.stats["clip_ratio"], mask), metrics["actor/pg_clipfrac"])
        lower = masked_mean(out.stats["clip_ratio_dual"], mask)
        parity.close(file, lower, metrics["actor/pg_clipfrac_lower"])
        moved = jnp.clip(out.stats["approx_kl"], -20, 20)  # they clamp it
        parity.close(file, masked_mean(moved, mask), metrics["actor/ppo_kl"])


def test_ppo_clip_openrlhf(parity):
    file = f"{FAMILY}/ppo_clip__openrlhf"
    for case in parity.cases(file):
        mask = jnp.asarray(case.inputs["mask"])
        block = with_optional_dual(case.params, "dual_clip")
        value, slope, out = run(case, block, openrlhf(mask, case.params))
        check(parity, file, case, value, slope)
        parity.close(file, out.loss, case.outputs["per_token"], where=mask)
        parity.close(file, masked_mean(out.stats["clip_ratio"], mask), case.outputs["clip_ratio"])
        parity.close(file, masked_mean(out.stats["approx_kl"], mask), case.outputs["ppo_kl"])


def test_ppo_clip_skyrl(parity):
    file = f"{FAMILY}/ppo_clip__skyrl"
    for case in parity.cases(file):
        mask = jnp.asarray(case.inputs["mask"])
        dual = case.params["policy_loss_type"] == "dual_clip"
        block = (
            with_optional_dual(case.params, "clip_ratio_c")
            if dual
            else partial(pl.ppo_clip, **clips(case.params))
        )
        weights = skyrl(mask, case.params)
        value, slope, out = run(case, block, weights)
        check(parity, file, case, value, slope)
        parity.close(file, weights * out.loss, case.outputs["scaled_per_token"], where=mask)
        metric = case.outputs["metrics"]["clip_ratio"]
        parity.close(file, masked_mean(out.stats["clip_ratio"], mask), metric)


def test_ppo_clip_trl(parity):
    """Also with a cap on the ratio (`delta`); no clamp."""
    file = f"{FAMILY}/ppo_clip__trl"
    for case in parity.cases(file):
        mask = jnp.asarray(case.inputs["mask"])
        delta = case.params["delta"]
        block = partial(pl.ppo_clip, **clips(case.params), **INF)
        if delta is not None:
            block = partial(pl.delta_clip, **clips(case.params), delta=delta, **INF)
        value, slope, out = run(case, block, trl(mask, case.params))
        check(parity, file, case, value, slope)
        for side in ("low", "high"):
            mean = masked_mean(out.stats[f"clip_ratio_{side}"], mask)
            parity.close(file, mean, case.outputs["metrics"][f"clip_ratio/{side}_mean"])


def test_ppo_clip_tunix(parity):
    file = f"{FAMILY}/ppo_clip__tunix"
    for case in parity.cases(file):
        mask = jnp.asarray(case.inputs["mask"])
        block = with_optional_dual(case.params, "epsilon_c")
        value, slope, _ = run(case, block, tunix(mask, case.params))
        check(parity, file, case, value, slope)


def test_ppo_clip_areal(parity):
    file = f"{FAMILY}/ppo_clip__areal"
    for case in parity.cases(file):
        mask = jnp.asarray(case.inputs["mask"])
        block = with_optional_dual(case.params, "c_clip", **INF)
        value, slope, out = run(case, block, token_mean(mask, case.params))
        check(parity, file, case, value, slope)
        parity.close(file, out.loss, case.outputs["per_token"], where=mask)


def test_ppo_clip_unclamped_with_kl_tunix(parity):
    """Their KL term is k1: its gradient is that of logp, whatever the reference."""
    file = f"{FAMILY}/ppo_clip_unclamped_with_kl__tunix"
    for case in parity.cases(file):
        logp, _, _, mask = tokens(case)
        weights = token_mean(mask, case.params)
        block = with_optional_dual(case.params, "epsilon_c", **INF)
        value, slope, _ = run(case, block, weights)
        reference = jnp.asarray(case.inputs["ref_logp"])

        def kl(logp, reference=reference, weights=weights, coef=case.params["kl_coef"]):
            return coef * (weights * kl_estimator.k1(logp, reference)).sum()

        more, extra = jax.value_and_grad(kl)(logp)
        check(parity, file, case, value + more, slope + extra)
