"""Advantages at the peers' hyperparameters give the peers' numbers.

At tokens that are no actions Zootomy returns 0, always; peers return by-products of their
recursions there (returns through holes), which are left out of the comparison.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from zootomy.blocks import RewardInfo
from zootomy.registry import get

VERL = {}
OPENRLHF = {"ddof": 0, "eps_place": "floor"}


def tokens(case, *names):
    return [jnp.asarray(case.inputs[name]) for name in names]


def test_cumulative_return_openrlhf(parity):
    file = "advantage/cumulative_return__openrlhf"
    for case in parity.cases(file):
        rewards, mask = tokens(case, "token_rewards", "mask")
        _, returns = get("advantage", "cumulative_return")(
            rewards, None, mask, gamma=case.params["gamma"], holes="step"
        )
        parity.close(file, returns, case.outputs["returns"], where=mask)


@pytest.mark.parametrize(
    "file, holes, whitened",
    [
        ("gae__verl", "skip", True),
        ("gae__tunix", "skip", True),
        ("gae_raw__verl", "skip", False),
        ("gae__openrlhf", "step", False),
    ],
)
def test_gae(parity, file, holes, whitened):
    file = f"advantage/{file}"
    for case in parity.cases(file):
        rewards, values, mask = tokens(case, "token_rewards", "values", "mask")
        gamma, lam = case.params["gamma"], case.params["lam"]
        advantages, returns = get("advantage", "gae")(
            rewards, values, mask, gamma=gamma, lam=lam, holes=holes
        )
        if whitened:
            advantages = get("whitening", "batch")(advantages, mask)
        parity.close(file, returns, case.outputs["returns"], where=mask)
        parity.close(file, advantages, case.outputs["advantages"], where=mask)


def test_gae_skyrl_runs_over_padding(parity):
    # Deliberately different: SkyRL's recursion ignores the mask, so that the values of padding
    # leak into the last action. Here masked entries have no effect; a mask of ones, under which
    # padding counts as actions, gives SkyRL's numbers.
    file = "advantage/gae__skyrl"
    differs = 0.0
    for case in parity.cases(file):
        rewards, values, mask = tokens(case, "token_rewards", "values", "mask")
        gamma, lam = case.params["gamma"], case.params["lam"]
        gae = get("advantage", "gae")
        advantages, returns = gae(rewards, values, jnp.ones_like(mask), gamma=gamma, lam=lam)
        whitened = get("whitening", "batch")(advantages, mask)
        parity.close(file, returns, case.outputs["returns"], where=mask)
        parity.close(file, whitened, case.outputs["advantages"], where=mask)
        ours = gae(rewards, values, mask, gamma=gamma, lam=lam)[1]
        differs = max(differs, np.abs(ours - case.outputs["returns"])[np.asarray(mask) > 0].max())
    assert differs > 0.1


def test_gae_through_a_hole_by_peer():
    # r = [0, 0, 0, 1], V = [.5, .2, 9, .4], mask [1, 1, 0, 1], γ .9, λ .8: the first return is
    # .60624 in verl and Tunix and here, .44657 in OpenRLHF, 1.61297 in SkyRL.
    rewards, values = jnp.array([[0.0, 0, 0, 1]]), jnp.array([[0.5, 0.2, 9.0, 0.4]])
    mask, gae = jnp.array([[1, 1, 0, 1]]), get("advantage", "gae")
    settings = {"gamma": 0.9, "lam": 0.8}
    first = [
        gae(rewards, values, mask, **settings)[1][0, 0],
        gae(rewards, values, mask, holes="step", **settings)[1][0, 0],
        gae(rewards, values, jnp.ones_like(mask), **settings)[1][0, 0],
    ]
    np.testing.assert_allclose(first, [0.60624, 0.44657, 1.61297], rtol=1e-5)


@pytest.mark.parametrize("peer, holes", [("verl", "skip"), ("skyrl", "reset")])
def test_reinforce_pp(parity, peer, holes):
    file = f"advantage/reinforce_pp__{peer}"
    for case in parity.cases(file):
        rewards, mask = tokens(case, "token_rewards", "mask")
        advantages, returns = get("advantage", "reinforce_pp")(
            rewards, None, mask, gamma=case.params["gamma"], holes=holes
        )
        parity.close(file, returns, case.outputs["returns"], where=mask)
        parity.close(file, advantages, case.outputs["advantages"], where=mask)


def test_reinforce_pp_openrlhf(parity):
    file = "advantage/reinforce_pp__openrlhf"
    for case in parity.cases(file):
        kl, mask = tokens(case, "kl", "mask")
        rewards = parity.at_last_action(case.inputs["rewards"], case.inputs["mask"])
        advantages, returns = get("advantage", "reinforce_pp")(
            rewards - case.params["kl_coef"] * kl,
            None,
            mask,
            gamma=case.params["gamma"],
            holes="step",
            **OPENRLHF,
        )
        parity.close(file, returns, case.outputs["returns"], where=mask)
        parity.close(file, advantages, case.outputs["advantages"], where=mask)


@pytest.mark.parametrize("peer", ["openrlhf", "verl"])
def test_reinforce_pp_baseline(parity, peer):
    file = f"advantage/reinforce_pp_baseline__{peer}"
    for case in parity.cases(file):
        mask, ids = jnp.asarray(case.inputs["mask"]), case.inputs["group_ids"]
        rewards = case.inputs["rewards"]
        # Uneven groups as [P, G] with invalid entries.
        members = ids[None] == np.unique(ids)[:, None]
        shaped = get("reward_shaping", "group_mean")(
            jnp.asarray(np.where(members, rewards, np.nan)),
            RewardInfo(jnp.asarray(members)),
            singleton="reward" if peer == "verl" else "zero",
        ).sum(0)
        options = OPENRLHF if peer == "openrlhf" else VERL
        advantages, _ = get("advantage", "reinforce_pp")(
            jnp.asarray(parity.at_last_action(np.asarray(shaped), case.inputs["mask"])),
            None,
            mask,
            use_std=not case.params.get("no_std_norm", False),
            **options,
        )
        parity.close(file, advantages, case.outputs["advantages"], where=mask)


@pytest.mark.parametrize(
    "file, steps",
    [
        ("optimal_token_baseline__verl", "positions"),
        ("optimal_token_baseline_multi_turn__verl", "actions"),
    ],
)
def test_optimal_token_baseline(parity, file, steps):
    file = f"advantage/{file}"
    for case in parity.cases(file):
        rewards, mask, ids = tokens(case, "token_rewards", "mask", "group_ids")
        old_logp, squared = tokens(case, "old_logp", "sum_pi_squared")
        options = {
            "steps": steps,
            "zero_tail": case.params["handle_zero_tail"],
            "singleton": "reward",
            "eps": case.params["epsilon"],
        }
        given = {"group_ids": ids, "old_logp": old_logp, "sum_pi_squared": squared}
        if "rollout_is_weights" in case.inputs:
            # The peer's weights as the ratio that gives them.
            sampled = old_logp - jnp.log(jnp.asarray(case.inputs["rollout_is_weights"]))
            advantages, returns = get("advantage", "otb_corrected")(
                rewards, None, mask, rollout_logp=sampled, cap=1e9, **given, **options
            )
        else:
            advantages, returns = get("advantage", "otb")(rewards, None, mask, **given, **options)
        parity.close(file, returns, case.outputs["returns"], where=mask)
        parity.close(file, advantages, case.outputs["advantages"])


def test_every_file_is_tried(parity):
    assert sorted(path.stem for path in (parity.data / "advantage").glob("*.json")) == [
        "cumulative_return__openrlhf",
        "gae__openrlhf",
        "gae__skyrl",
        "gae__tunix",
        "gae__verl",
        "gae_raw__verl",
        "optimal_token_baseline__verl",
        "optimal_token_baseline_multi_turn__verl",
        "reinforce_pp__openrlhf",
        "reinforce_pp__skyrl",
        "reinforce_pp__verl",
        "reinforce_pp_baseline__openrlhf",
        "reinforce_pp_baseline__verl",
    ]
