"""Losses with a sequence's ratio against the numbers of other libraries."""

from functools import partial

import jax.numpy as jnp
import numpy as np
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
    trl,
    tunix,
    verl,
)
from zootomy.blocks import aggregation, ratio
from zootomy.blocks import policy_loss as pl
from zootomy.blocks.masking import masked_mean

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
