"""KL estimators, in the reward and in the loss, against the numbers of other libraries."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zootomy.blocks import aggregation
from zootomy.blocks import kl_estimator as kl

FAMILY = "kl"
BY_NAME = {"k1": kl.k1, "k2": kl.k2, "k3": kl.k3, "abs": kl.absolute}

# file -> hyperparameters that make our block theirs
SAMPLED = {
    "abs__skyrl": {},
    "abs__verl": {},
    "abs_straight_through__verl": {"gradient": "k2"},
    "k1__openrlhf": {"clamp_out": 10.0},
    "k1__skyrl": {},
    "k1__verl": {},
    "k1_straight_through__verl": {"gradient": "k2"},
    "k2__openrlhf": {"clamp_out": 10.0},
    "k2__skyrl": {},
    "k2__verl": {},
    "k3__openrlhf": {"clamp_out": 10.0},
    "k3__skyrl": {"clamp_out": 10.0},
    "k3__verl": {"clamp_out": 10.0},
    "k3_straight_through__verl": {"clamp_out": 10.0, "gradient": "k2"},
}


def value_and_slopes(estimator, inputs, **hyper):
    """The estimates, and the derivative of their sum by logp."""

    def total(logp):
        out = estimator(logp, inputs["ref_logp"], **hyper)
        return out.sum(), out

    slope, value = jax.grad(total, has_aux=True)(jnp.asarray(inputs["logp"]))
    return value, slope


@pytest.mark.parametrize("name", sorted(SAMPLED))
def test_estimators(parity, name):
    estimator = BY_NAME[name.split("_")[0]]
    for case in parity.cases(f"{FAMILY}/{name}"):
        value, slope = value_and_slopes(estimator, case.inputs, **SAMPLED[name])
        if case.inputs.get("mask") is not None:
            value, slope = value * case.inputs["mask"], slope * case.inputs["mask"]
        parity.close(f"{FAMILY}/{name}", value, case.outputs["kl"])
        parity.close(f"{FAMILY}/{name}", slope, case.grads["logp"])


@pytest.mark.parametrize("name", ["k1__areal", "k2__areal", "k3__areal",
                                  "k1__tunix", "k2__tunix", "k3__tunix"])  # fmt: skip
def test_optional_clamp(parity, name):
    """Deliberately different (k3): where exp overflows float32, at d < -88.7.

    There AReaL and Tunix return inf with a slope of -inf, or, clipped at 10, a slope of NaN. Ours
    is bounded at the exponent 20: 10 with the slope 0, or exp(20) + d - 1 with 1 - exp(20); with
    `clamp=inf` the unclipped pair is theirs.
    """
    estimator = BY_NAME[name.split("_")[0]]
    for case in parity.cases(f"{FAMILY}/{name}"):
        params = case.params
        bound = params.get("clamp_value", 10.0 if params.get("apply_clamp") else None)
        hyper = {"clamp_out": bound}
        if name.startswith("k3"):
            hyper["clamp"] = math.inf if bound is None else 20.0
        value, slope = value_and_slopes(estimator, case.inputs, **hyper)
        d = case.inputs["logp"] - case.inputs["ref_logp"]
        overflow = (d < -88.7) & name.startswith("k3")
        parity.close(f"{FAMILY}/{name}", value, case.outputs["kl"])
        theirs = np.asarray(case.grads["logp"])
        parity.close(f"{FAMILY}/{name}", slope, theirs, where=~overflow)
        if overflow.any():
            assert not np.isfinite(theirs[overflow]).any()
            bounded, finite = value_and_slopes(kl.k3, case.inputs, clamp_out=bound)
            if bound is None:
                np.testing.assert_allclose(bounded[overflow], math.exp(20), rtol=1e-5)
                np.testing.assert_allclose(finite[overflow], -math.exp(20), rtol=1e-5)
            else:
                np.testing.assert_array_equal(bounded[overflow], bound)
                np.testing.assert_array_equal(finite[overflow], 0)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_unbiased_gradient(parity, estimator):
    """OpenRLHF forms the value as v + s - sg(s), which loses digits of v where s is large."""
    name = f"{FAMILY}/{estimator}_unbiased__openrlhf"
    for case in parity.cases(name):
        old = case.inputs.get("old_logp")
        old = case.inputs["logp"] if old is None else old  # their weight is 1 then
        block = partial(kl.unbiased, old_logp=jnp.asarray(old), estimator=estimator, clamp_out=10.0)
        value, slope = value_and_slopes(block, case.inputs)
        d = case.inputs["logp"] - case.inputs["ref_logp"]
        lost = 1e-6 * 10 * d**2  # float32's eps times s, at the largest weight
        error = np.abs(np.asarray(value) - case.outputs["kl"])
        assert (error <= 1e-6 + 1e-5 * np.abs(case.outputs["kl"]) + lost).all()
        parity.close(name, value, case.outputs["kl"], where=lost < 1e-5)
        parity.close(name, slope, case.grads["logp"])


def test_k3_in_the_loss(parity):
    """TRL: beta times the mean over all rows of the row's mean."""
    name = f"{FAMILY}/k3_in_loss__trl"
    for case in parity.cases(name):
        mask = jnp.asarray(case.inputs["mask"])
        weights = aggregation.sequence_mean_token_mean(mask, None, count_empty=True)
        level = case.params["importance_sampling_level"]

        def loss(logp, case=case, mask=mask, weights=weights, level=level):
            if case.params["use_bias_correction_kl"]:
                out = kl.importance_weighted(
                    logp,
                    case.inputs["ref_logp"],
                    old_logp=case.inputs["old_logp"],
                    mask=mask,
                    level=level,
                    clamp=math.inf,
                )
            else:
                out = kl.k3(logp, case.inputs["ref_logp"], clamp=math.inf)
            return case.params["beta"] * (weights * jnp.where(mask > 0, out, 0)).sum()

        value, slope = jax.value_and_grad(loss)(jnp.asarray(case.inputs["logp"]))
        parity.close(name, value, case.outputs["loss"])
        parity.close(name, slope, case.grads["logp"])


def test_kl_in_grpo_loss(parity):
    """Tunix: beta times the KL, aggregated as the policy loss; its advantages are 0 here."""
    name = f"{FAMILY}/kl_in_grpo_loss__tunix"
    modes = {"kl": "k1", "mse_kl": "k2", "low_var_kl": "k3"}
    weights_of = {
        "token-mean": aggregation.token_mean,
        "sequence-mean-token-mean": aggregation.sequence_mean_token_mean,
    }
    for case in parity.cases(name):
        mask = jnp.asarray(case.inputs["mask"])
        weights = weights_of[case.params["loss_agg_mode"]](mask, None)
        estimator = BY_NAME[modes[case.params["kl_loss_mode"]]]

        def loss(logp, case=case, mask=mask, weights=weights, estimator=estimator):
            bound = case.params["kl_clamp_value"]
            out = estimator(logp, case.inputs["ref_logp"], clamp_out=bound)
            return case.params["beta"] * (weights * jnp.where(mask > 0, out, 0)).sum()

        value, slope = jax.value_and_grad(loss)(jnp.asarray(case.inputs["logp"]))
        parity.close(name, value, case.outputs["loss"])
        parity.close(name, slope, case.grads["logp"])


def test_every_file_of_the_family_is_covered(parity):
    named = {*SAMPLED, "k3_in_loss__trl", "kl_in_grpo_loss__tunix"}
    named |= {f"{k}__{peer}" for k in ("k1", "k2", "k3") for peer in ("areal", "tunix")}
    named |= {f"{k}_unbiased__openrlhf" for k in ("k1", "k2", "k3")}
    assert {path.stem for path in (parity.data / FAMILY).glob("*.json")} == named
