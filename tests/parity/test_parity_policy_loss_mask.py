"""Policy losses under masks and corrections, against the numbers of other libraries."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from policy_loss_peers import (
    FAMILY,
    INF,
    areal_correction,
    check,
    clips,
    run,
    token_mean,
    tokens,
    trl,
    verl,
)
from zootomy.blocks import aggregation, correction, regularizer
from zootomy.blocks import policy_loss as pl

# -- masks, entropies and corrections around a PPO loss ----------------------------------------


def test_top_entropy_mask_trl(parity):
    file = f"{FAMILY}/top_entropy_mask__trl"
    for case in parity.cases(file):
        _, old, _, mask = tokens(case)
        weight, kept = correction.top_entropy(
            old,
            None,
            mask,
            entropy=jnp.asarray(case.inputs["entropy"]),
            fraction=case.params["top_entropy_quantile"],
        )
        parity.close(file, kept, case.outputs["keep"])
        block = partial(pl.ppo_clip, **clips(case.params), **INF)
        value, slope, _ = run(case, block, trl(mask, case.params) * weight)
        check(parity, file, case, value, slope)


def test_entropy_bonus_trl(parity):
    """The bonus is a mean over the tokens it is given to, whatever the policy loss's reduction."""
    file = f"{FAMILY}/entropy_bonus__trl"
    for case in parity.cases(file):
        logp, old, a, mask = tokens(case)
        fraction = case.params["top_entropy_quantile"]
        entropy = jnp.asarray(case.inputs["entropy"])
        weight, kept = correction.top_entropy(old, None, mask, entropy=entropy, fraction=fraction)
        per = aggregation.token_mean(kept, None)

        def bonus(entropy, case=case, args=(logp, a, mask), per=per, fraction=fraction):
            logp, a, mask = args
            minus = regularizer.entropy_top(logp, None, entropy, a, mask, fraction=fraction)
            return case.params["entropy_coef"] * (per * minus).sum()

        more, by_entropy = jax.value_and_grad(bonus)(entropy)
        block = partial(pl.ppo_clip, **clips(case.params), **INF)
        value, slope, _ = run(case, block, trl(mask, case.params) * weight)
        check(parity, file, case, value + more, slope)
        parity.close(file, by_entropy, case.grads["entropy"])


def test_off_policy_sequence_mask_trl(parity):
    file = f"{FAMILY}/off_policy_sequence_mask__trl"
    for case in parity.cases(file):
        logp, old, a, mask = tokens(case)
        weight, kept = correction.off_policy_sequence_mask(
            old,
            jnp.asarray(case.inputs["rollout_logp"]),
            mask,
            logp=logp,
            advantages=a,
            threshold=case.params["threshold"],
        )
        keep = np.broadcast_to(np.reshape(case.outputs["keep"], (mask.shape[0], -1)), mask.shape)
        parity.close(file, kept, keep, where=mask)
        block = partial(pl.ppo_clip, **clips(case.params), **INF)
        value, slope, _ = run(case, block, trl(mask, case.params) * weight)
        check(parity, file, case, value, slope)


def test_decoupled_ppo_areal(parity):
    """Rejected tokens leave the sum and stay in the count: the denominator "original"."""
    file = f"{FAMILY}/decoupled_ppo__areal"
    for case in parity.cases(file):
        mask = jnp.asarray(case.inputs["mask"])
        proximal = jnp.asarray(case.inputs["prox_logp"])
        rollout = jnp.asarray(case.inputs["rollout_logp"])
        weight, _ = areal_correction(proximal, rollout, mask, case.params)
        block = partial(pl.ppo_clip, **clips(case.params), **INF)
        weights = token_mean(mask, case.params) * weight
        value, slope, _ = run(case, block, weights, old=proximal)
        check(parity, file, case, value, slope)


def test_bypass_mode_verl(parity):
    """old_logp is the engine's; weights and mask are of the policy's drift from it.

    Rejected tokens leave the count too: the denominator "kept". PPO's clip takes no weights.
    """
    file = f"{FAMILY}/bypass_mode__verl"
    for case in parity.cases(file):
        p = case.params
        logp, rollout, _, mask = tokens(case)
        weight, kept = jnp.ones(mask.shape), mask > 0
        if p.get("rollout_rs"):
            threshold = str(p["rollout_rs_threshold"])
            if p["rollout_rs"] == "token_k1":
                low, high = (math.log(float(x)) for x in threshold.split("_"))
                hyper = {"statistic": "k1", "level": "token", "low": low, "high": high}
            else:
                level, statistic = p["rollout_rs"].removeprefix("seq_").split("_")
                hyper = {
                    "statistic": statistic,
                    "level": f"sequence_{level}",
                    "high": float(threshold),
                }
            _, kept = correction.rejection(logp, rollout, mask, **hyper)
        if p["loss_type"] == "reinforce":
            by_token = p["rollout_is"] == "token"
            block = correction.tis if by_token else correction.sequence_tis
            weight, _ = block(logp, rollout, mask, high=p["rollout_is_threshold"])
            loss = pl.reinforce
        else:
            loss = partial(pl.dual_clip, **clips(p), clip_dual=p["clip_ratio_c"])
        value, slope, _ = run(case, loss, verl(kept, p) * weight)
        check(parity, file, case, value, slope)
