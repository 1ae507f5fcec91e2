"""Value losses against the numbers of other libraries."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zootomy.blocks import aggregation, value_loss

FAMILY = "value_loss"


def areal(params):
    clip = params["value_eps_clip"]
    weights = (aggregation.token_mean, {})
    if params["loss_fn_type"] == "huber":
        return value_loss.huber, {"delta": 10.0, "clip": clip}, weights
    return value_loss.clipped_mse, {"clip": clip}, weights


def clipped_or_not(clip):
    if clip is None:
        return value_loss.mse, {}
    return value_loss.clipped_mse, {"clip": clip}


def openrlhf(params):
    by_token = params["token_level_loss"]
    weights = aggregation.token_mean if by_token else aggregation.sequence_mean_token_mean
    return *clipped_or_not(params["clip_eps"]), (weights, {})


def skyrl(params):
    clip = next(value for name, value in params.items() if "clip" in name)
    weights = (aggregation.sequence_mean_token_mean, {"count_empty": True})
    return *clipped_or_not(clip), weights


def tunix(params):
    clip = next(value for name, value in params.items() if "clip" in name)
    return *clipped_or_not(clip), (aggregation.token_mean, {})


def verl(params):
    weights = {
        "token-mean": aggregation.token_mean,
        "seq-mean-token-mean": aggregation.sequence_mean_token_mean,
    }[params["loss_agg_mode"]]
    return value_loss.clipped_mse, {"clip": params["cliprange_value"]}, (weights, {})


PEERS = {"areal": areal, "openrlhf": openrlhf, "skyrl": skyrl, "tunix": tunix, "verl": verl}


@pytest.mark.parametrize("peer", sorted(PEERS))
def test_value_loss(parity, peer):
    name = f"{FAMILY}/value_loss__{peer}"
    for case in parity.cases(name):
        block, hyper, (weigh, options) = PEERS[peer](case.params)
        old, returns, mask = (case.inputs[k] for k in ("old_values", "returns", "mask"))
        weights = weigh(jnp.asarray(mask), None, **options)

        def loss(values, block=block, hyper=hyper, weights=weights, rest=(old, returns, mask)):
            return (weights * block(values, *map(jnp.asarray, rest), **hyper)).sum()

        value, slope = jax.value_and_grad(loss)(jnp.asarray(case.inputs["values"]))
        parity.close(name, value, case.outputs["loss"])
        parity.close(name, slope, case.grads["values"])
        if case.outputs.get("clipfrac") is not None:
            v, c = case.inputs["values"], hyper["clip"]
            near = np.clip(v, old - c, old + c)
            binds = (np.square(near - returns) > np.square(v - returns)) & (mask > 0)
            parity.close(name, binds.sum() / mask.sum(), case.outputs["clipfrac"])


def test_every_file_of_the_family_is_covered(parity):
    named = {f"value_loss__{peer}" for peer in PEERS}
    assert {path.stem for path in (parity.data / FAMILY).glob("*.json")} == named
