"""Corrections of the drift between engine and trainer, against other libraries."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zootomy.blocks import aggregation, policy_loss, ratio
from zootomy.blocks import correction as c

FAMILY = "rollout_correction"


def drift_inputs(case):
    old = case.inputs.get("old_logp", case.inputs.get("prox_logp"))
    return [jnp.asarray(x) for x in (old, case.inputs["rollout_logp"], case.inputs["mask"])]


def bounds(text):
    """verl's thresholds: "low_high", or a single upper bound."""
    if isinstance(text, str) and "_" in text:
        low, high = text.split("_")
        return float(low), float(high)
    return None, float(text)


# -- OpenRLHF: weights from a run on advantages of -1, and a PPO loss with them -----------------


def openrlhf_block(name, params):
    low, high = (float(x) for x in params["threshold"])
    if name.startswith("tis_token"):
        return c.tis, {"low": low, "high": high, "clamp": math.inf}
    if name.startswith("icepop_token"):
        return c.icepop, {"low": low, "high": high, "clamp": math.inf}
    if name.startswith("geometric"):
        return c.seq_mask_tis, {"low": low, "high": high, "token_high": None, "clamp": math.inf}
    divergence = "kl" if name.startswith("binary_kl") else "tv"
    level = "sequence" if "sequence" in name else "token"
    hyper = {"divergence": divergence, "level": level, "high": high, "clamp": math.inf}
    return c.divergence_mask, hyper


OPENRLHF = [
    "binary_kl_mask_sequence__openrlhf",
    "binary_kl_mask_token__openrlhf",
    "geometric_mask_token_weights__openrlhf",
    "icepop_token__openrlhf",
    "tis_token__openrlhf",
    "tv_mask_sequence__openrlhf",
    "tv_mask_token__openrlhf",
]


@pytest.mark.parametrize("name", OPENRLHF)
def test_openrlhf(parity, name):
    file = f"{FAMILY}/{name}"
    for case in parity.cases(file):
        old, rollout, mask = drift_inputs(case)
        block, hyper = openrlhf_block(name, case.params)
        weights, _ = block(old, rollout, mask, **hyper)
        parity.close(file, weights, case.outputs["weights"], where=mask)
        advantages = jnp.asarray(case.inputs["advantages"])
        per = aggregation.token_mean(mask, None)

        def loss(logp, old=old, mask=mask, a=advantages, w=weights * per, p=case.params):
            out = policy_loss.ppo_clip(
                ratio.token(logp, old, mask),
                a,
                logp,
                old,
                mask,
                clip_low=p["clip_low"],
                clip_high=p["clip_high"],
            )
            return (w * out.loss).sum()

        value, slope = jax.value_and_grad(loss)(jnp.asarray(case.inputs["logp"]))
        parity.close(file, value, case.outputs["loss"])
        parity.close(file, slope, case.grads["logp"])


# -- TRL: weights alone; no bound on the log-ratio; a NaN counts as no drift there --------------


@pytest.mark.parametrize(
    "name", ["tis_token__trl", "tis_sequence__trl", "icepop_token__trl", "icepop_sequence__trl"]
)
def test_trl(parity, name):
    """Deliberately different: masked positions weigh 0 here, in TRL 1 before the bounds.

    A NaN log-probability of the engine on an action counts as no drift in TRL (ratio 1). Here it
    is not hidden: the test fills in the trainer's own number, as a caller would have to.
    """
    file = f"{FAMILY}/{name}"
    for case in parity.cases(file):
        old, rollout, mask = drift_inputs(case)
        missing = jnp.isnan(rollout)
        if bool((missing & (mask > 0)).any()):
            assert not bool(jnp.isfinite(c.tis(old, rollout, mask)[0]).all())
        rollout = jnp.where(missing, old, rollout)
        low, high = case.params["clip_min"], case.params["clip_max"]
        if "token" in name and "tis" in name:
            got = c.tis(old, rollout, mask, low=low or 0.0, high=high, clamp=math.inf)
        elif "token" in name:
            got = c.icepop(old, rollout, mask, low=low or 0.0, high=high, clamp=math.inf)
        elif "tis" in name:
            got = c.sequence_tis(old, rollout, mask, low=low or 0.0, high=high, clamp=math.inf)
        else:
            got = c.mis(old, rollout, mask, reduce="sum", weight="sequence", low=low, high=high,
                        clamp=math.inf)  # fmt: skip
        theirs = np.broadcast_to(case.outputs["weights"], mask.shape)
        parity.close(file, got[0], theirs, where=mask)


# -- verl: weights (truncated or windowed), a mask after rejection, and metrics -----------------


def verl_weights(old, rollout, mask, params):
    """verl's weights: their block, or None without; the mask stays as it is."""
    level, (low, high) = params["rollout_is"], bounds(params["rollout_is_threshold"])
    window = low is not None
    if params.get("rollout_is_batch_normalize"):
        return c.normalized(
            old,
            rollout,
            mask,
            level=level,
            low=low or 0.0,
            high=high,
            outside="zero" if window else "clip",
        )
    if level == "token":
        return (
            c.icepop(old, rollout, mask, low=low, high=high)
            if window
            else c.tis(old, rollout, mask, high=high)
        )
    if window:
        return c.mis(old, rollout, mask, reduce="sum", weight="sequence", low=low, high=high)
    return c.sequence_tis(old, rollout, mask, high=high)


def verl_rejection(old, rollout, mask, params):
    """verl's rejection options, all of which must keep a token; its k1 bounds are ratios."""
    options = str(params["rollout_rs"]).split(",")
    thresholds = str(params["rollout_rs_threshold"]).split(",")
    levels = {"token": "token", "seq_sum": "sequence_sum", "seq_mean": "sequence_mean",
              "seq_max": "sequence_max"}  # fmt: skip
    results = []
    for option, threshold in zip(options, thresholds, strict=True):
        level, statistic = option.rsplit("_", 1)
        low, high = bounds(threshold)
        if statistic == "k1":
            low = 1.0 / high if low is None else low
            low, high = math.log(low), math.log(high)
        else:
            low = None
        results.append(
            c.rejection(
                old, rollout, mask, statistic=statistic, level=levels[level], low=low, high=high
            )
        )
    return c.combine(*results)


@pytest.mark.parametrize(
    "name", ["tis_token__verl", "tis_sequence__verl", "icepop_token__verl", "icepop_sequence__verl"]
)
def test_verl_weights(parity, name):
    file = f"{FAMILY}/{name}"
    for case in parity.cases(file):
        old, rollout, mask = drift_inputs(case)
        weights, _ = verl_weights(old, rollout, mask, case.params)
        parity.close(file, weights, case.outputs["weights"])
        np.testing.assert_array_equal(case.outputs["mask"], mask)


def test_verl_rejection(parity):
    file = f"{FAMILY}/rejection_mask__verl"
    for case in parity.cases(file):
        old, rollout, mask = drift_inputs(case)
        _, kept = verl_rejection(old, rollout, mask, case.params)
        parity.close(file, kept, case.outputs["mask"])


def test_verl_weights_and_rejection(parity):
    """A rejected token keeps its weight in verl, but leaves the mask; here it weighs 0."""
    file = f"{FAMILY}/weights_and_rejection__verl"
    for case in parity.cases(file):
        old, rollout, mask = drift_inputs(case)
        weights, _ = verl_weights(old, rollout, mask, case.params)
        rejected, kept = verl_rejection(old, rollout, mask, case.params)
        parity.close(file, weights, case.outputs["weights"])
        parity.close(file, kept, case.outputs["mask"])
        # as verl: the window of the weights does not change the mask
        both = jnp.where(kept, weights * rejected, 0.0)
        parity.close(file, both, case.outputs["weights"] * case.outputs["mask"])


def test_verl_metrics(parity):
    file = f"{FAMILY}/offpolicy_metrics__verl"
    for case in parity.cases(file):
        got = c.drift_metrics(*drift_inputs(case))
        assert set(got) == set(case.outputs)
        for key, value in got.items():
            parity.close(file, value, case.outputs[key])


# -- SkyRL: masks and capped weights ------------------------------------------------------------


def skyrl_block(name, params):
    if name.startswith("tis_token"):
        high = next(v for k, v in params.items() if "clip_high" in k)
        return c.tis, {"high": high}
    if name.startswith("tis_sequence"):
        return c.sequence_tis, {"high": params["sequence_tis_ratio_clip_high"]}
    if name.startswith("icepop"):
        low, high = (params[f"token_mask_is_threshold_{side}"] for side in ("low", "high"))
        return c.icepop, {"low": low, "high": high}
    if name.startswith("outlier"):
        low, high = (params[f"outlier_token_is_threshold_{side}"] for side in ("low", "high"))
        return c.veto, {"low": low, "high": high}
    word = "geo" if name.startswith("geometric") else "product"
    low, high = (params[f"{word}_mask_{side}"] for side in ("low", "high"))
    reduce = "mean" if word == "geo" else "sum"
    return c.mis, {"reduce": reduce, "low": low, "high": high}


SKYRL = ["geometric_mask__skyrl", "icepop_token_mask__skyrl", "outlier_sequence_mask__skyrl",
         "product_mask__skyrl", "tis_sequence__skyrl", "tis_token__skyrl"]  # fmt: skip


@pytest.mark.parametrize("name", SKYRL)
def test_skyrl(parity, name):
    file = f"{FAMILY}/{name}"
    for case in parity.cases(file):
        old, rollout, mask = drift_inputs(case)
        block, hyper = skyrl_block(name, case.params)
        weights, kept = block(old, rollout, mask, **hyper)
        if "mask" in case.outputs:
            parity.close(file, kept, case.outputs["mask"])
        if "weights" in case.outputs:
            theirs = np.broadcast_to(case.outputs["weights"], mask.shape)
            parity.close(file, weights, theirs, where=mask)


def test_skyrl_combined(parity):
    """Outlier rows, then tokens, then weights, then the geometric mean of what is left."""
    file = f"{FAMILY}/combined__skyrl"
    for case in parity.cases(file):
        old, rollout, mask = drift_inputs(case)
        p = case.params
        _, kept = c.veto(
            old,
            rollout,
            mask,
            low=p["outlier_token_is_threshold_low"],
            high=p["outlier_token_is_threshold_high"],
        )
        _, kept = c.icepop(
            old,
            rollout,
            kept,
            low=p["token_mask_is_threshold_low"],
            high=p["token_mask_is_threshold_high"],
        )
        weights, _ = c.tis(old, rollout, mask, high=p["token_tis_ratio_clip_high"])
        _, kept = c.mis(old, rollout, kept, low=p["geo_mask_low"], high=p["geo_mask_high"])
        parity.close(file, kept, case.outputs["mask"])
        theirs = np.broadcast_to(case.outputs["weights"], mask.shape)
        parity.close(file, weights, theirs, where=mask)


# -- AReaL: rejection by metric and level, as a mask or as a clamp of the weights ---------------


def areal(old, rollout, mask, params):
    """AReaL's rejection sampling: (weights, kept)."""
    low, high = params["lower"], params["upper"]
    metric, by_token = params["metric"].removeprefix("kl_"), params["level"] == "token"
    if params["action"] == "clamp":
        if by_token:
            return c.tis(old, rollout, mask, low=low or 0.0, high=high, clamp=math.inf)
        return c.sequence_tis(
            old, rollout, mask, reduce="mean", low=low or 0.0, high=high, clamp=math.inf
        )
    weight = "sequence" if metric == "ratio" and not by_token else "token"
    return c.rejection(
        old,
        rollout,
        mask,
        statistic=metric,
        level="token" if by_token else f"sequence_{params['agg']}",
        low=low,
        high=high,
        reverse=True,
        weight=weight,
        clamp=math.inf,
    )


def test_areal(parity):
    file = f"{FAMILY}/rejection_sampling__areal"
    for case in parity.cases(file):
        old, rollout, mask = drift_inputs(case)
        weights, kept = areal(old, rollout, mask, case.params)
        parity.close(file, kept, case.outputs["mask"])
        parity.close(file, weights, case.outputs["weights"])


def test_every_file_of_the_family_is_covered(parity):
    named = {
        *OPENRLHF,
        *SKYRL,
        "combined__skyrl",
        "rejection_sampling__areal",
        "rejection_mask__verl",
        "weights_and_rejection__verl",
        "offpolicy_metrics__verl",
    }
    named |= {
        f"{kind}_{level}__{peer}"
        for kind in ("tis", "icepop")
        for level in ("token", "sequence")
        for peer in ("verl", "trl")
    }
    assert {path.stem for path in (parity.data / FAMILY).glob("*.json")} == named
