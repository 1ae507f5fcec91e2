"""Preference and reward-model losses against the numbers of other libraries."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zootomy.blocks import preference_loss as pref
from zootomy.blocks import reward_loss

FAMILY = "preference"


def beta(params):
    return {"beta": params["beta"]}


def smooth(params):
    return {"beta": params["beta"], "label_smoothing": params.get("label_smoothing", 0.0)}


# file -> block, and its hyperparameters from the case's
PAIRS = {
    "dpo_aot__trl": (partial(pref.aot, paired=True), smooth),
    "dpo_aot_unpaired__trl": (partial(pref.aot, paired=False), smooth),
    "dpo_apo_down__trl": (pref.apo_down, beta),
    "dpo_apo_zero__trl": (pref.apo_zero, beta),
    "dpo_bco_pair__trl": (pref.bco, beta),
    "dpo_discopop__trl": (pref.discopop, lambda p: {"beta": p["beta"], "tau": p["tau"]}),
    "dpo_dpo_positive__oat-llm": (
        pref.dpo_positive,
        lambda p: {"beta": p["beta"], "penalty": p["dpo_positive_lambda"]},
    ),
    "dpo_exo_pair__trl": (pref.exo, smooth),
    "dpo_hinge__trl": (pref.hinge, beta),
    "dpo_ipo__oat-llm": (pref.ipo, beta),
    "dpo_ipo__openrlhf": (pref.ipo, beta),
    "dpo_ipo__trl": (partial(pref.ipo, length_normalized=True), beta),
    "dpo_length_regularised__oat-llm": (
        pref.r_dpo,
        lambda p: {"beta": p["beta"], "alpha": p["len_reg_alpha"]},
    ),
    "dpo_nca_pair__trl": (pref.nca, beta),
    "dpo_robust__trl": (pref.robust, smooth),
    "dpo_sft__trl": (pref.sft, lambda p: {}),
    "dpo_sft_regularised__oat-llm": (
        pref.dpo_sft,
        lambda p: {"beta": p["beta"], "coef": p["sft_weight"]},
    ),
    "dpo_sigmoid__openrlhf": (pref.dpo, smooth),
    "dpo_sigmoid__trl": (pref.dpo, beta),
    "dpo_sigmoid_alpha_divergence__trl": (
        partial(pref.f_dpo, divergence="alpha"),
        lambda p: {"beta": p["beta"], "alpha": p["alpha"]},
    ),
    "dpo_sigmoid_forward_kl__trl": (partial(pref.f_dpo, divergence="forward_kl"), beta),
    "dpo_sigmoid_js_divergence__trl": (partial(pref.f_dpo, divergence="js"), beta),
    "dpo_sigmoid_norm__trl": (partial(pref.dpo, length_normalized=True), beta),
    "dpo_slic_hinge__oat-llm": (pref.hinge, beta),
    "dpo_sppo_hard__trl": (pref.sppo, beta),
}


def sigmoid_plus_sft(*args, beta, weights):
    """TRL's weighted sum of losses."""
    return weights[0] * pref.dpo(*args, beta=beta) + weights[1] * pref.sft(*args)


PAIRS["dpo_sigmoid_plus_sft__trl"] = (
    sigmoid_plus_sft,
    lambda p: {"beta": p["beta"], "weights": p["loss_weights"]},
)


def lengths_of(case, pairs):
    if "chosen_len" not in case.inputs:
        return jnp.ones((pairs, 2), jnp.int32)
    return jnp.stack(
        [jnp.asarray(case.inputs[f"{side}_len"]) for side in ("chosen", "rejected")], 1
    )


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_pairs(parity, name):
    """By the sums of log-probabilities, and by the tokens where the library takes those."""
    file = f"{FAMILY}/{name}"
    block, hyper_of = PAIRS[name]
    for case in parity.cases(file):
        hyper = hyper_of(case.params)
        sums = [jnp.asarray(case.inputs[f"{side}_logps"]) for side in ("chosen", "rejected")]
        references = [
            jnp.asarray(case.inputs[f"ref_{side}_logps"]) for side in ("chosen", "rejected")
        ]
        lengths = lengths_of(case, sums[0].shape[0])
        keep = jnp.asarray(case.inputs.get("loss_mask", 1.0))

        def loss(chosen, rejected, rest=(*references, lengths), keep=keep, hyper=hyper):
            return (keep * block(chosen, rejected, *rest, **hyper)).mean()

        value, slopes = jax.value_and_grad(loss, argnums=(0, 1))(*sums)
        parity.close(file, value, case.outputs["loss"])
        for side, slope in zip(("chosen", "rejected"), slopes, strict=True):
            if f"{side}_logps" in case.grads:
                parity.close(file, slope, case.grads[f"{side}_logps"])
        if "logp" in case.grads:
            mask = jnp.asarray(case.inputs["mask"])

            def by_token(logp, mask=mask, loss=loss):
                return loss(*jnp.split(pref.completion_logp(logp, mask), 2))

            value, slope = jax.value_and_grad(by_token)(jnp.asarray(case.inputs["logp"]))
            parity.close(file, value, case.outputs["loss"])
            parity.close(file, slope, case.grads["logp"])


def test_length_desensitised(parity):
    file = f"{FAMILY}/dpo_length_desensitised__trl"
    for case in parity.cases(file):
        mask = jnp.asarray(case.inputs["mask"])
        half = mask.shape[0] // 2
        other = jnp.concatenate([mask[half:], mask[:half]])
        sums = partial(
            pref.completion_logp,
            mask=mask,
            other_mask=other,
            desensitisation=case.params["ld_alpha"],
        )
        lengths = jnp.ones((half, 2), jnp.int32)

        def loss(logp, case=case, sums=sums, lengths=lengths):
            own = jnp.split(sums(logp), 2)
            references = jnp.split(sums(jnp.asarray(case.inputs["ref_logp"])), 2)
            return pref.dpo(*own, *references, lengths, beta=case.params["beta"]).mean()

        value, slope = jax.value_and_grad(loss)(jnp.asarray(case.inputs["logp"]))
        parity.close(file, value, case.outputs["loss"])
        parity.close(file, slope, case.grads["logp"])


def test_wpo(parity):
    file = f"{FAMILY}/dpo_wpo_weighting__trl"
    for case in parity.cases(file):
        mask = jnp.asarray(case.inputs["mask"])
        expected = jnp.exp(jnp.asarray(case.inputs["log_sum_sq_probs"]))
        lengths = jnp.ones((mask.shape[0] // 2, 2), jnp.int32)

        def loss(logp, case=case, mask=mask, expected=expected, lengths=lengths):
            own = jnp.split(pref.completion_logp(logp, mask), 2)
            references = pref.completion_logp(jnp.asarray(case.inputs["ref_logp"]), mask)
            up, down = jnp.split(pref.wpo_weights(logp, expected, mask), 2)
            out = pref.dpo(*own, *jnp.split(references, 2), lengths, beta=case.params["beta"])
            return (up * down * out).mean()

        value, slope = jax.value_and_grad(loss)(jnp.asarray(case.inputs["logp"]))
        parity.close(file, value, case.outputs["loss"])
        parity.close(file, slope, case.grads["logp"])


@pytest.mark.parametrize("name", ["kto__trl", "kto_apo_zero_unpaired__trl"])
def test_kto_unpaired(parity, name):
    file = f"{FAMILY}/{name}"
    for case in parity.cases(file):
        kl = 0.0
        if "kl_logps" in case.inputs:
            kl = (case.inputs["kl_logps"] - case.inputs["ref_kl_logps"]).mean()
            parity.close(file, max(kl, 0.0), case.outputs["kl"])

        def loss(logps, case=case, kl=kl):
            p = case.params
            return pref.kto_terms(
                logps - case.inputs["ref_logps"],
                case.inputs["label"] > 0,
                kl,
                beta=p["beta"],
                desirable_weight=p["desirable_weight"],
                undesirable_weight=p["undesirable_weight"],
            ).mean()

        value, slope = jax.value_and_grad(loss)(jnp.asarray(case.inputs["logps"]))
        parity.close(file, value, case.outputs["loss"])
        parity.close(file, slope, case.grads["logps"])


# Without a reference. TRL's CPO and ORPO add the imitation term elsewhere, and ORPO's trainer
# subtracts what it returns: the sign is turned here. The log-probabilities are means already.
ALONE = {
    "cpo_hinge__trl": (partial(pref.cpo, form="hinge", nll=0.0), smooth, 1.0),
    "cpo_ipo__trl": (partial(pref.cpo, form="ipo", nll=0.0), smooth, 1.0),
    "cpo_sigmoid__trl": (partial(pref.cpo, nll=0.0), smooth, 1.0),
    "orpo__trl": (partial(pref.orpo, nll=0.0), beta, -1.0),
    "simpo__trl": (
        pref.simpo,
        lambda p: {**smooth(p), "gamma": p["simpo_gamma"], "alpha": p["alpha"]},
        1.0,
    ),
    "simpo__oat-llm": (
        pref.simpo,
        lambda p: {
            **smooth(p),
            "gamma": p["gamma_beta_ratio"] * p["beta"],
            "form": p["loss_type"],
        },
        1.0,
    ),
}


@pytest.mark.parametrize("name", sorted(ALONE))
def test_without_a_reference(parity, name):
    file = f"{FAMILY}/{name}"
    block, hyper_of, sign = ALONE[name]
    for case in parity.cases(file):
        sums = [jnp.asarray(case.inputs[f"{side}_logps"]) for side in ("chosen", "rejected")]
        zeros, lengths = jnp.zeros_like(sums[0]), lengths_of(case, sums[0].shape[0])
        keep = jnp.asarray(case.inputs.get("loss_mask", 1.0))

        hyper = hyper_of(case.params)

        def losses(chosen, rejected, rest=(zeros, zeros, lengths), hyper=hyper):
            return sign * block(chosen, rejected, *rest, **hyper)

        def loss(chosen, rejected, losses=losses, keep=keep):
            return (keep * losses(chosen, rejected)).mean()

        value, slopes = jax.value_and_grad(loss, argnums=(0, 1))(*sums)
        if "losses" in case.outputs:
            parity.close(file, losses(*sums), case.outputs["losses"])
        else:
            parity.close(file, value, case.outputs["loss"])
        for side, slope in zip(("chosen", "rejected"), slopes, strict=True):
            parity.close(file, slope, case.grads[f"{side}_logps"])


@pytest.mark.parametrize(
    "name", ["bradley_terry__openrlhf", "bradley_terry__trl", "log_exp__openrlhf"]
)
def test_reward_models(parity, name):
    """Deliberately different (log_exp): log(1 + exp(j - c)) is computed without overflow.

    OpenRLHF's is inf with a slope of NaN for a gap of 105; ours is the gap, with the slope 1.
    """
    file = f"{FAMILY}/{name}"
    for case in parity.cases(file):
        scores = [jnp.asarray(case.inputs[f"{side}_rewards"]) for side in ("chosen", "rejected")]
        margin = case.inputs.get("margin")
        margin = None if margin is None else jnp.asarray(margin)
        center = case.params.get("center_rewards_coefficient") or 0.0

        def loss(chosen, rejected, margin=margin, center=center, name=name):
            if name.startswith("log_exp"):
                return reward_loss.log_exp(chosen, rejected, None).mean()
            return reward_loss.bradley_terry(chosen, rejected, margin, center=center).mean()

        value, slopes = jax.value_and_grad(loss, argnums=(0, 1))(*scores)
        gaps = np.asarray(scores[1] - scores[0])
        if name.startswith("log_exp") and not np.isfinite(case.outputs["loss"]):
            assert gaps.max() > 88
            np.testing.assert_allclose(value, np.logaddexp(0, gaps).mean(), rtol=1e-6)
            slope = 1 / (1 + np.exp(-gaps.astype(np.float64))) / gaps.size
            np.testing.assert_allclose(slopes[1], slope, rtol=1e-5)
            where = gaps <= 88
        else:
            parity.close(file, value, case.outputs["loss"])
            where = gaps == gaps
        for side, slope in zip(("chosen", "rejected"), slopes, strict=True):
            parity.close(file, slope, case.grads[f"{side}_rewards"], where=where)


def test_every_file_of_the_family_is_covered(parity):
    named = {*PAIRS, *ALONE, "dpo_length_desensitised__trl", "dpo_wpo_weighting__trl", "kto__trl",
             "kto_apo_zero_unpaired__trl", "bradley_terry__openrlhf", "bradley_terry__trl",
             "log_exp__openrlhf"}  # fmt: skip
    assert {path.stem for path in (parity.data / FAMILY).glob("*.json")} == named
