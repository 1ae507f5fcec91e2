"""A block that returns what its slot does not state is refused: JAX would broadcast it."""

import json

import jax.numpy as jnp
import pytest
from zootomy import ZootomyError, algorithm, assemble, register
from zootomy.blocks import TokenLoss
from zootomy.learners import Outputs, Rollouts
from zootomy.learners.learner import _for_json

# One prompt, two completions of two and one actions.
ROLLOUTS = Rollouts(
    rewards=jnp.array([[1.0, 0.0]]),
    valid=jnp.ones((1, 2), bool),
    mask=jnp.array([[1.0, 1.0], [1.0, 0.0]]),
)
LOGP = jnp.log(jnp.array([[0.5, 0.25], [0.5, 1.0]]))


def loss(changes):
    experience, objective = assemble(algorithm("reinforce", **changes))
    given, _ = experience(ROLLOUTS, {})
    return objective(Outputs(logp=LOGP), given, {}).total


RETURNED = {
    "reward_shaping: a row, which broadcasts": (
        "reward_shaping",
        lambda rewards, info: rewards.max(axis=1, keepdims=True),
        "reward_shaping 'odd' must return [P, G], here of shape [1, 2], and returned an array of "
        "shape [1, 1].",
    ),
    "reward_shaping: flat": (
        "reward_shaping",
        lambda rewards, info: rewards.reshape(-1),
        "reward_shaping 'odd' must return [P, G], here of shape [1, 2], and returned an array of "
        "shape [2].",
    ),
    "advantage: alone": (
        "advantage",
        lambda token_rewards, values, mask: token_rewards,
        "advantage 'odd' must return (advantages [N, T], returns [N, T]), and returned a ",
    ),
    "advantage: one a completion": (
        "advantage",
        lambda token_rewards, values, mask: (token_rewards.sum(1, keepdims=True), token_rewards),
        "advantage 'odd' must return (advantages [N, T], returns [N, T]), here of shape [2, 2], "
        "and returned an array of shape [2, 1].",
    ),
    "whitening: one a completion": (
        "whitening",
        lambda advantages, mask: advantages.sum(axis=1),
        "whitening 'odd' must return [N, T], here of shape [2, 2], and returned an array of "
        "shape [2].",
    ),
    "policy_loss: a bare array": (
        "policy_loss",
        lambda log_ratio, advantages, logp, old_logp, mask: -advantages * logp,
        "policy_loss 'odd' must return TokenLoss(loss [N, T], stats), and returned a ",
    ),
    "policy_loss: a scalar": (
        "policy_loss",
        lambda log_ratio, advantages, logp, old_logp, mask: TokenLoss(jnp.sum(logp), {}),
        "policy_loss 'odd' must return TokenLoss(loss [N, T], stats), here of shape [2, 2], and "
        "returned an array of shape [].",
    ),
    "policy_loss: a scalar among the metrics": (
        "policy_loss",
        lambda log_ratio, advantages, logp, old_logp, mask: TokenLoss(logp, {"x": jnp.sum(logp)}),
        "policy_loss 'odd' must return TokenLoss(loss [N, T], stats), here of shape [2, 2], and "
        "returned an array of shape [].",
    ),
    "aggregation: a scalar": (
        "aggregation",
        lambda mask, group_ids: 1.0 / mask.sum(),
        "aggregation 'odd' must return weights [N, T], over the whole mini-batch, here of shape "
        "[2, 2], and returned an array of shape [].",
    ),
}


@pytest.mark.usefixtures("clean_registry")
@pytest.mark.filterwarnings("ignore::zootomy.learners.DoubtfulChoiceWarning")
@pytest.mark.parametrize("case", RETURNED)
def test_what_the_slot_does_not_state(case):
    slot, function, message = RETURNED[case]
    register(slot, "odd")(function)
    with pytest.raises(ZootomyError) as caught:
        loss({slot: "odd"})
    assert str(caught.value).startswith(message)


def test_infinite_hyperparameters_can_be_recorded():
    """`show policy_loss.sapo` names an infinite clamp; a run with it must be able to save."""
    given = algorithm("sapo", **{"policy_loss.clamp": float("inf")}).to_dict()
    text = json.dumps(_for_json(given), allow_nan=False)
    assert json.loads(text)["policy_loss"]["clamp"] == "inf"
    assert _for_json(algorithm("grpo").to_dict()) == algorithm("grpo").to_dict()
