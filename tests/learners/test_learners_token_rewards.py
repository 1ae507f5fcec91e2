"""Rewards a token and a turn go through the learner to the advantages, by hand."""

import numpy as np
import pytest
import tiny_run
from zootomy import ZootomyError, algorithm, block
from zootomy.learners import DoubtfulChoiceWarning
from zootomy.rollout import Completion
from zootomy.tasks import RewardFunction

# Two completions of one prompt: of three tokens in two turns, and of two in one.
TOKENS = ([2, 3, 1], [4, 1])
TURNS = ([0, 0, 1], [0, 0])


class TwoTurns:
    """An environment's engine: it says which turn each token belongs to."""

    def __init__(self, vocab_size, turns=TURNS):
        self.version, self.turns = 0, turns

    def generate(self, requests, sampling, seed=None):
        return [[self._one(k % 2) for k in range(request.n)] for request in requests]

    def _one(self, k):
        ids = np.array(TOKENS[k], np.int32)
        turns = None if self.turns is None else np.array(self.turns[k], np.int64)
        return Completion(ids, np.full(len(ids), -2.0, np.float32), "stop", self.version, turns)

    def update_weights(self, weights, version):
        self.version = version

    def close(self):
        pass


def made(digits, returned, per, name="dr_grpo", turns=TURNS, **changes):
    """`(rollouts, experience)` of a learner's step on the two completions."""
    rewards = (RewardFunction("parts", lambda prompts, completions: returned, per=per),)
    learner = tiny_run.make_learner(
        digits, lambda vocab: TwoTurns(vocab, turns), algorithm(name, **changes),
        rewards=rewards, full=1, group=2,
    )  # fmt: skip
    seen, experience = [], learner.updater._experience

    def spy(rollouts, *given):
        found = experience(rollouts, *given)
        seen.append((rollouts, found[0]))
        return found

    learner.updater._experience = spy
    metrics = learner.step().metrics
    assert np.isfinite(metrics["policy_loss"])
    return seen[0]


def test_rewards_by_turn_reach_an_advantage_by_turn(digits):
    changes = {"advantage": block("turn_level", gamma=0.5), "reward_shaping": ()}
    rollouts, batch = made(digits, [[0.25, 1.0], [0.5]], "turn", **changes)
    assert rollouts.rewards.tolist() == [[1.25, 0.5]]
    assert rollouts.token_rewards.tolist() == [[0.0, 0.25, 1.0], [0.0, 0.5, 0.0]]
    assert rollouts.turn_ids.tolist() == [[0, 0, 1], [0, 0, 0]]
    # 0.25 + 0.5 · 1 on both actions of the first turn, then 1. With the whole reward on the last
    # action it would be 0.625, 0.625, 1.25.
    np.testing.assert_allclose(batch.advantages, [[0.75, 0.75, 1.0], [0.5, 0.5, 0.0]])


def test_gigpo_compares_turns_that_began_in_one_state(digits):
    changes = {"advantage": block("gigpo", gamma=0.5, norm="none"), "reward_shaping": ()}
    _, batch = made(digits, [[0.25, 1.0], [0.5]], "turn", **changes)
    # Whole: 1.25 and 0.5 about 0.875: ±0.375. From state 0: 0.75 and 0.5 about 0.625: ±0.125.
    # No other turn began in state 1: 0.
    np.testing.assert_allclose(batch.advantages, [[0.5, 0.5, 0.375], [-0.5, -0.5, 0.0]], rtol=1e-6)


def test_without_turns_a_completion_is_one(digits):
    changes = {"advantage": block("turn_level", gamma=0.5), "reward_shaping": ()}
    rollouts, batch = made(digits, [[0.25], [0.5]], "turn", turns=None, **changes)
    assert not rollouts.turn_ids.any()
    np.testing.assert_allclose(batch.advantages, [[0.25] * 3, [0.5, 0.5, 0.0]])


def test_rewards_by_token_are_summed_from_each_action_on(digits):
    changes = {"reward_shaping": (), "advantage": block("cumulative_return", gamma=0.5)}
    rollouts, batch = made(digits, [[1.0, 0.0, 2.0], [0.0, 3.0]], "token", **changes)
    assert rollouts.turn_ids is None
    # 1 + 0.25 · 2, 0.5 · 2, 2;  0.5 · 3, 3
    np.testing.assert_allclose(batch.advantages, [[1.5, 1.0, 2.0], [1.5, 3.0, 0.0]])


def test_what_a_list_changes_it_changes_on_the_last_action(digits):
    # Sums 3 and 1, mean 2: R' = ±1. Rewards 1, 0, 2 + (1 − 3) and 1, 0 + (−1 − 1).
    _, batch = made(digits, [[1.0, 0.0, 2.0], [1.0, 0.0]], "token")
    np.testing.assert_allclose(batch.advantages, [[1.0, 0.0, 0.0], [-1.0, -2.0, 0.0]])


def test_other_functions_rewards_stand_on_the_last_action(digits):
    rewards = (
        RewardFunction("parts", lambda p, c: [[1.0, 0.0, 0.0], [0.0, 0.0]], per="token"),
        RewardFunction("whole", lambda p, c: [4.0, 2.0]),
    )
    learner = tiny_run.make_learner(
        digits, TwoTurns, algorithm("reinforce"), rewards=rewards, full=1, group=2
    )
    collected = learner.collector.collect(0, 0)
    assert collected.groups[0].rewards.tolist() == [5.0, 2.0]
    assert [x.tolist() for x in collected.groups[0].token_rewards] == [[1.0, 0.0, 0.0], [0.0, 0.0]]


def test_a_list_that_divides_is_doubtful(digits):
    rewards = (RewardFunction("parts", tiny_run.share, per="token"),)
    with pytest.warns(DoubtfulChoiceWarning, match=r"'group_norm' changes the unit of a compl"):
        tiny_run.make_learner(digits, TwoTurns, algorithm("grpo"), rewards=rewards)


def test_turns_that_do_not_fit_their_tokens():
    ids, logp = np.array([1, 2], np.int32), np.zeros(2, np.float32)
    with pytest.raises(ZootomyError) as error:
        Completion(ids, logp, "stop", 0, np.array([0.0, 1.0]))
    assert str(error.value) == (
        "a completion's turns are one integer per token, got turns of shape (2,) and type float64 "
        "for 2 tokens"
    )
