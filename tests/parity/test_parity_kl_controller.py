"""Controllers follow the peers step by step, in Python floats."""

import jax.numpy as jnp
import pytest
from zootomy.blocks.masking import masked_mean
from zootomy.registry import get


@pytest.mark.parametrize("peer", ["openrlhf", "skyrl", "verl"])
def test_adaptive_kl(parity, peer):
    file = f"kl_controller/adaptive_kl__{peer}"
    for case in parity.cases(file):
        params = case.params
        controller = get("controller", "adaptive_kl")(
            coef=params["init"],
            target=params["target"],
            horizon=params["horizon"],
            n_steps=params["n_steps"],
        )
        state, coefficients = controller.init(), []
        for kl in case.inputs["kl"]:
            state, coefficient = controller.update(state, {"kl": float(kl)})
            coefficients.append(coefficient)
        parity.close(file, coefficients, case.outputs["coef"])


def test_adaptive_entropy_trl(parity):
    file = "kl_controller/adaptive_entropy__trl"
    for case in parity.cases(file):
        params, given, out = case.params, case.inputs, case.outputs
        controller = get("controller", "entropy_target")(
            coef=params["c0"],
            target=params["target"],
            delta=params["delta"],
            minimum=params["lo"],
            maximum=params["hi"],
        )
        state = controller.init()
        coefficient = state["coefficient"]
        mask = jnp.asarray(given["mask"])
        policy_loss = clipped(given, mask)
        for step in range(len(out["coef"])):
            entropy = masked_mean(jnp.asarray(given["entropy"][step]), mask)
            parity.close(file, entropy, out["mean_entropy"][step])
            # The loss of the step has the bonus of the step before: GRPO's clip, less it.
            parity.close(file, policy_loss - coefficient * entropy, out["loss"][step])
            state, coefficient = controller.update(state, {"entropy": float(entropy)})
            parity.close(file, state["level"], out["coef"][step])


def clipped(given, mask):
    logp, old = jnp.asarray(given["logp"]), jnp.asarray(given["old_logp"])
    advantages = jnp.broadcast_to(jnp.asarray(given["seq_advantages"])[:, None], mask.shape)
    log_ratio = get("ratio", "token")(logp, old, mask)
    loss = get("policy_loss", "ppo_clip")(log_ratio, advantages, logp, old, mask).loss
    weights = get("aggregation", "sequence_mean_token_mean")(mask, jnp.arange(mask.shape[0]))
    return (weights * loss).sum()


def test_every_file_is_tried(parity):
    here = {path.stem for path in (parity.data / "kl_controller").glob("*.json")}
    assert here == {
        "adaptive_entropy__trl",
        "adaptive_kl__openrlhf",
        "adaptive_kl__skyrl",
        "adaptive_kl__verl",
    }
