"""Policy losses, with their ratios and aggregations, against the numbers of other libraries."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zootomy.blocks import (
    aggregation,
    correction,
    kl_estimator,
    ratio,
    regularizer,
)
from zootomy.blocks import (
    policy_loss as pl,
)
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


# -- the ratio of a sequence -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gspo__verl", "gspo_row_advantage__verl"])
def test_gspo_verl(parity, name):
    file = f"{FAMILY}/{name}"
    for case in parity.cases(file):
        mask = jnp.asarray(case.inputs["mask"])
        block = partial(pl.ppo_clip, **clips(case.params), **INF)
        ratios = partial(ratio.sequence_token, cap=10.0)
        weights = verl(mask, case.params)
        value, slope, out = run(case, block, weights, ratios)
        check(parity, file, case, value, slope)
        parity.close(file, out.loss, case.outputs["per_token"], where=mask)


def test_gspo_skyrl(parity):
    file = f"{FAMILY}/gspo__skyrl"
    for case in parity.cases(file):
        mask = jnp.asarray(case.inputs["mask"])
        block = partial(pl.ppo_clip, **clips(case.params), **INF)
        ratios = partial(ratio.sequence_token, cap=10.0)
        value, slope, _ = run(case, block, skyrl(mask, case.params), ratios)
        check(parity, file, case, value, slope)


def test_gspo_tunix(parity):
    file = f"{FAMILY}/gspo__tunix"
    for case in parity.cases(file):
        mask = jnp.asarray(case.inputs["mask"])
        block = partial(pl.ppo_clip, **clips(case.params), **INF)
        ratios = partial(ratio.sequence_token, clamp_token=20.0, cap=10.0)
        value, slope, _ = run(case, block, tunix(mask, case.params), ratios)
        check(parity, file, case, value, slope)


@pytest.mark.parametrize("peer, weigh", [("openrlhf", row_mean), ("trl", trl)])
def test_gspo_through_the_mean(parity, peer, weigh):
    file = f"{FAMILY}/gspo__{peer}"
    for case in parity.cases(file):
        mask = jnp.asarray(case.inputs["mask"])
        block = partial(pl.ppo_clip, **clips(case.params), **INF)
        value, slope, out = run(case, block, weigh(mask, case.params), ratio.sequence)
        check(parity, file, case, value, slope)
        if "per_token" in case.outputs:
            parity.close(file, out.loss, case.outputs["per_token"], where=mask)


def row_advantages(case):
    """AReaL gives every token of a sequence the mean of its advantages."""
    mask = jnp.asarray(case.inputs["mask"])
    mean = masked_mean(jnp.asarray(case.inputs["advantages"]), mask, axis=1)
    return jnp.broadcast_to(mean[:, None], mask.shape)


def test_gspo_areal(parity):
    file = f"{FAMILY}/gspo__areal"
    for case in parity.cases(file):
        mask = jnp.asarray(case.inputs["mask"])
        block = partial(pl.ppo_clip, **clips(case.params), **INF)
        value, slope, out = run(
            case,
            block,
            token_mean(mask, case.params),
            ratio.sequence,
            advantages=row_advantages(case),
        )
        check(parity, file, case, value, slope)
        parity.close(file, out.loss, case.outputs["per_token"], where=mask)


def test_luspo_trl(parity):
    """The length in the loss under a mean, or the plain clip under a sum: the same."""
    file = f"{FAMILY}/luspo__trl"
    for case in parity.cases(file):
        mask = jnp.asarray(case.inputs["mask"])
        ratios = {"token": ratio.token, "sequence": ratio.sequence}[
            case.params["importance_sampling_level"]
        ]
        summed = aggregation.sequence_mean_token_sum(mask, None, count_empty=True)
        for block, weights in ((pl.luspo, trl(mask, case.params)), (pl.ppo_clip, summed)):
            block = partial(block, **clips(case.params), **INF)
            value, slope, _ = run(case, block, weights, ratios)
            check(parity, file, case, value, slope)


def test_rloo_sequence_clip_trl(parity):
    """The product of a sequence's ratios; TRL keeps only the sum of the old log-probabilities."""
    file = f"{FAMILY}/rloo_sequence_clip__trl"
    for case in parity.cases(file):
        mask = np.asarray(case.inputs["mask"])
        old = np.zeros(mask.shape, np.float32)
        for row, total in enumerate(case.inputs["old_logp_sum"]):
            old[row, np.flatnonzero(mask[row])[0]] = total
        block = partial(pl.ppo_clip, **clips(case.params), **INF)
        ratios = partial(ratio.sequence, reduce="sum")
        weights = trl(jnp.asarray(mask), case.params)
        value, slope, _ = run(case, block, weights, ratios, old=old)
        check(parity, file, case, value, slope)


@pytest.mark.parametrize("name", ["gmpo__trl", "gmpo__verl", "gmpo_row_advantage__verl"])
def test_gmpo(parity, name):
    """verl multiplies a sequence by the geometric mean of its importance weights."""
    file = f"{FAMILY}/{name}"
    for case in parity.cases(file):
        mask = jnp.asarray(case.inputs["mask"])
        weights = trl(mask, case.params)
        if "rollout_is_weights" in case.inputs:
            logs = jnp.log(jnp.asarray(case.inputs["rollout_is_weights"]) + 1e-10)
            weights = weights * jnp.exp(masked_mean(logs, mask, axis=1))[:, None]
        value, slope, _ = run(case, partial(pl.gmpo, **clips(case.params), **INF), weights)
        check(parity, file, case, value, slope)


# -- other losses ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["reinforce__verl", "gpg__verl"])
def test_reinforce_verl(parity, name):
    file = f"{FAMILY}/{name}"
    for case in parity.cases(file):
        mask = jnp.asarray(case.inputs["mask"])
        weights = verl(mask, case.params) * case.inputs.get("rollout_is_weights", 1.0)
        value, slope, _ = run(case, pl.reinforce, weights)
        check(parity, file, case, value, slope)


def test_importance_sampling_skyrl(parity):
    file = f"{FAMILY}/importance_sampling__skyrl"
    for case in parity.cases(file):
        mask = jnp.asarray(case.inputs["mask"])
        block = partial(pl.reinforce, form="ratio", **INF)
        value, slope, _ = run(case, block, mask.astype(jnp.float32))
        check(parity, file, case, value, slope)


def test_rollout_is_skyrl(parity):
    """The policy's own drift from the engine, inside a window, weighs the policy gradient."""
    file = f"{FAMILY}/rollout_is__skyrl"
    for case in parity.cases(file):
        logp, _, _, mask = tokens(case)
        low, high = 1 - case.params["clip_low"], 1 + case.params["clip_high"]
        drift, _ = correction.icepop(
            logp, jnp.asarray(case.inputs["rollout_logp"]), mask, low=low, high=high
        )
        value, slope, _ = run(case, pl.reinforce, skyrl(mask, case.params) * drift)
        check(parity, file, case, value, slope)


def test_cispo_verl(parity):
    file = f"{FAMILY}/cispo__verl"
    for case in parity.cases(file):
        mask = jnp.asarray(case.inputs["mask"])
        low, high = 1 - case.params["clip_low"], 1 + case.params["clip_high"]
        drift = case.inputs.get("rollout_is_weights", 1.0)
        value, slope, out = run(
            case, partial(pl.cispo, low=low, high=high), verl(mask, case.params) * drift
        )
        check(parity, file, case, value, slope)
        parity.close(file, out.loss * drift, case.outputs["per_token"], where=mask)
        metric = case.outputs["metrics"]["actor/pg_clipfrac"]
        parity.close(file, masked_mean(out.stats["clip_ratio"], mask), metric)


def test_cispo_skyrl(parity):
    file = f"{FAMILY}/cispo__skyrl"
    for case in parity.cases(file):
        mask = jnp.asarray(case.inputs["mask"])
        low, high = 1 - case.params["eps_low"], 1 + case.params["eps_high"]
        anchor = {"old": "old_logp", "rollout": "rollout_logp"}[case.params["anchor"]]
        value, slope, _ = run(
            case,
            partial(pl.cispo, low=low, high=high),
            skyrl(mask, case.params),
            old=case.inputs[anchor],
        )
        check(parity, file, case, value, slope)


def per_item(mask, params):
    """TRL's global count of tokens, which is a number of the run."""
    return mask / max(params["num_items_in_batch"], 1.0)


def test_cispo_trl(parity):
    file = f"{FAMILY}/cispo__trl"
    for case in parity.cases(file):
        mask = jnp.asarray(case.inputs["mask"])
        block = partial(pl.cispo, high=case.params["epsilon_high"], **INF)
        value, slope, _ = run(case, block, per_item(mask, case.params))
        check(parity, file, case, value, slope)


SAPO = [("verl", row_mean, {}), ("skyrl", skyrl, {}), ("trl", trl, INF)]


def taus(params):
    return {"tau_positive": params["tau_pos"], "tau_negative": params["tau_neg"]}


@pytest.mark.parametrize("peer, weigh, hyper", SAPO)
def test_sapo(parity, peer, weigh, hyper):
    file = f"{FAMILY}/sapo__{peer}"
    for case in parity.cases(file):
        mask = jnp.asarray(case.inputs["mask"])
        block = partial(pl.sapo, **taus(case.params), **hyper)
        value, slope, out = run(case, block, weigh(mask, case.params))
        check(parity, file, case, value, slope)
        if "per_token" in case.outputs:
            parity.close(file, out.loss, case.outputs["per_token"], where=mask)


def test_sapo_areal(parity):
    file = f"{FAMILY}/sapo__areal"
    for case in parity.cases(file):
        mask = jnp.asarray(case.inputs["mask"])
        by_sequence = case.params["importance_sampling_level"] == "sequence"
        value, slope, _ = run(
            case,
            partial(pl.sapo, **taus(case.params), **INF),
            token_mean(mask, case.params),
            ratio.sequence if by_sequence else ratio.token,
            advantages=row_advantages(case) if by_sequence else None,
        )
        check(parity, file, case, value, slope)


def test_dro_verl(parity):
    file = f"{FAMILY}/dro__verl"
    for case in parity.cases(file):
        mask = jnp.asarray(case.inputs["mask"])
        block = partial(pl.kimi, tau=case.params["dro_beta"])
        value, slope, out = run(case, block, verl(mask, case.params))
        check(parity, file, case, value, slope)
        parity.close(file, out.loss, case.outputs["per_token"], where=mask)


@pytest.mark.parametrize("divergence", ["tv", "kl"])
@pytest.mark.parametrize("peer", ["verl", "skyrl"])
def test_dppo(parity, peer, divergence):
    file = f"{FAMILY}/dppo_{divergence}__{peer}"
    for case in parity.cases(file):
        mask = jnp.asarray(case.inputs["mask"])
        hyper = {"delta_low": case.params["delta_low"], "delta_high": case.params["delta_high"]}
        if peer == "verl":
            hyper |= {"form": "logp", "ratio_cap": case.params["clip_ratio_c"]}
            weights = verl(mask, case.params)
        else:
            weights = skyrl(mask, case.params)
        old = case.inputs.get("rollout_logp", case.inputs["old_logp"])
        value, slope, out = run(
            case, partial(pl.dppo, divergence=divergence, **hyper), weights, old=old
        )
        check(parity, file, case, value, slope)
        if peer == "verl":
            parity.close(file, out.loss, case.outputs["per_token"], where=mask)


def test_vespo_trl(parity):
    """Deliberately different: TRL adds the engine's drift over masked positions too.

    Ours has it in the ratio of the actions alone. The test hands the block TRL's sum, spread
    evenly over the actions of a sequence.
    """
    file = f"{FAMILY}/vespo__trl"
    for case in parity.cases(file):
        logp, old, _, mask = tokens(case)
        d = jnp.clip(logp - old, -20, 20)
        sums = jnp.where(mask > 0, d, 0).sum(1, keepdims=True)
        if "importance_sampling_ratio" in case.inputs:
            drift = jnp.log(jnp.asarray(case.inputs["importance_sampling_ratio"]))
            drift = jnp.clip(drift, math.log(1e-8), 20).reshape(mask.shape[0], -1)
            sums = sums + drift.sum(1, keepdims=True)
        sums = jnp.clip(sums, math.log(1e-8), 20)
        spread = jnp.broadcast_to(sums / mask.sum(1, keepdims=True), mask.shape)
        p = case.params
        block = partial(
            pl.vespo,
            k_positive=p["k_pos"],
            lambda_positive=p["lambda_pos"],
            k_negative=p["k_neg"],
            lambda_negative=p["lambda_neg"],
        )
        weights = per_item(mask, p)
        value, slope, _ = run(case, block, weights, lambda *_, spread=spread: spread)
        check(parity, file, case, value, slope)
        if "importance_sampling_ratio" not in case.inputs:
            value, slope, _ = run(case, block, weights)
            check(parity, file, case, value, slope)


@pytest.mark.parametrize("peer", ["verl", "skyrl"])
def test_clip_cov(parity, peer):
    """Every candidate is taken out here; SkyRL's band is on advantages scaled by the reduction."""
    file = f"{FAMILY}/clip_cov__{peer}"
    for case in parity.cases(file):
        p = case.params
        mask = jnp.asarray(case.inputs["mask"])
        weights = verl(mask, p) if peer == "verl" else skyrl(mask, p)
        scale = 1.0 if peer == "verl" else weights
        block = partial(
            pl.clip_cov,
            **clips(p),
            fraction=p["clip_cov_ratio"] if peer == "verl" else p["clip_ratio"],
            cov_low=p["clip_cov_lb"],
            cov_high=p["clip_cov_ub"],
            **INF,
        )
        value, slope, out = run(
            case,
            block,
            weights if peer == "verl" else mask,
            advantages=case.inputs["advantages"] * scale,
        )
        check(parity, file, case, value, slope)
        if peer == "verl":
            parity.close(file, out.loss, case.outputs["per_token"], where=mask)
            metric = case.outputs["metrics"]["actor/pg_clipfrac"]
            parity.close(file, masked_mean(out.stats["clip_ratio"], mask), metric)


@pytest.mark.parametrize("peer", ["verl", "skyrl"])
def test_kl_cov(parity, peer):
    """SkyRL scales the advantages by the reduction, and not the pull."""
    file = f"{FAMILY}/kl_cov__{peer}"
    for case in parity.cases(file):
        p = case.params
        mask = jnp.asarray(case.inputs["mask"])
        weights = verl(mask, p) if peer == "verl" else skyrl(mask, p)
        scale = 1.0 if peer == "verl" else weights
        fraction = p["kl_cov_ratio"] if peer == "verl" else p["kl_cov_frac"]
        value, slope, out = run(
            case,
            partial(pl.kl_cov, fraction=fraction, coef=p["ppo_kl_coef"], **INF),
            weights if peer == "verl" else mask,
            advantages=case.inputs["advantages"] * scale,
        )
        check(parity, file, case, value, slope)
        if peer == "verl":
            parity.close(file, out.loss, case.outputs["per_token"], where=mask)


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


COVERED = {
    "ppo_clip": "verl openrlhf skyrl trl tunix areal",
    "ppo_clip_unclamped_with_kl": "tunix",
    "gspo": "verl skyrl tunix openrlhf trl areal",
    "gspo_row_advantage": "verl",
    "luspo": "trl",
    "rloo_sequence_clip": "trl",
    "gmpo": "trl verl",
    "gmpo_row_advantage": "verl",
    "reinforce": "verl",
    "gpg": "verl",
    "importance_sampling": "skyrl",
    "rollout_is": "skyrl",
    "cispo": "verl skyrl trl",
    "sapo": "verl skyrl trl areal",
    "dro": "verl",
    "dppo_tv": "verl skyrl",
    "dppo_kl": "verl skyrl",
    "vespo": "trl",
    "clip_cov": "verl skyrl",
    "kl_cov": "verl skyrl",
    "top_entropy_mask": "trl",
    "entropy_bonus": "trl",
    "off_policy_sequence_mask": "trl",
    "decoupled_ppo": "areal",
    "bypass_mode": "verl",
}


def test_every_file_of_the_family_is_covered(parity):
    named = {f"{block}__{peer}" for block, peers in COVERED.items() for peer in peers.split()}
    assert {path.stem for path in (parity.data / FAMILY).glob("*.json")} == named
