"""The losses beyond PPO against the numbers of other libraries."""

import math
from functools import partial

import jax.numpy as jnp
import pytest
from policy_loss_peers import (
    FAMILY,
    INF,
    check,
    clips,
    row_advantages,
    row_mean,
    run,
    skyrl,
    token_mean,
    tokens,
    trl,
    verl,
)
from zootomy.blocks import correction, ratio
from zootomy.blocks import policy_loss as pl
from zootomy.blocks.masking import masked_mean

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
