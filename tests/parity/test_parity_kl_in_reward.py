"""The KL in the reward: estimator, coefficient and mask give the peers' token rewards."""

import jax.numpy as jnp
import pytest
from zootomy.blocks.masking import masked, masked_mean
from zootomy.registry import get

# The peers' clamps: verl and SkyRL bound k3's result, OpenRLHF every estimator's.
ESTIMATORS = {
    "abs__verl": ("abs", {}),
    "k1__openrlhf": ("k1", {"clamp_out": 10.0}),
    "k1__skyrl": ("k1", {}),
    "k1__verl": ("k1", {}),
    "k2__openrlhf": ("k2", {"clamp_out": 10.0}),
    "k2__verl": ("k2", {}),
    "k3__openrlhf": ("k3", {"clamp": 10.0, "clamp_out": 10.0}),
    "k3__skyrl": ("k3", {"clamp_out": 10.0}),
    "k3__verl": ("k3", {"clamp_out": 10.0}),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_peer(parity, name):
    estimator, options = ESTIMATORS[name]
    file = f"kl_in_reward/kl_in_reward_{name}"
    for case in parity.cases(file):
        given = {key: jnp.asarray(value) for key, value in case.inputs.items()}
        mask = given["mask"]
        kl = get("kl_estimator", estimator)(given["old_logp"], given["ref_logp"], **options)
        coefficient = next(
            case.params[key] for key in ("beta", "coef", "kl_coef") if key in case.params
        )
        if "token_scores" in given:
            scores = given["token_scores"]
        else:
            scores = parity.at_last_action(case.inputs["rewards"], case.inputs["mask"])
        # The KL counts on actions alone. OpenRLHF leaves it on padding and holes, where it
        # is masked by the return later: compared on actions.
        rewards = scores - coefficient * masked(kl, mask)
        where = mask if "openrlhf" in name else None
        parity.close(file, rewards, case.outputs["token_rewards"], where=where)
        if "kl" in case.outputs:
            parity.close(file, kl, case.outputs["kl"], where=mask)
        for metric in ("current_kl", "avg_kl"):
            if metric in case.outputs:
                # The peers' metric is a mean over sequences of means over their actions;
                # ours is a mean over actions. The per-sequence form, for the comparison:
                by_sequence = masked_mean(kl, mask, axis=1).mean()
                parity.close(file, by_sequence, case.outputs[metric])


def test_every_file_is_tried(parity):
    here = {path.stem for path in (parity.data / "kl_in_reward").glob("*.json")}
    assert here == {f"kl_in_reward_{name}" for name in ESTIMATORS}
