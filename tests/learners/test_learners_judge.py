"""The reward model's score is one more component of the reward, at its weight."""

from dataclasses import replace

import numpy as np
import pytest
from zootomy.learners.judge import Judge
from zootomy.registry import ZootomyError
from zootomy.rollout import Completion
from zootomy.tasks import CharacterTokenizer, Example, RewardFunction, Task


class FakeCluster:
    """A cluster with nothing but a reward model."""

    def __init__(self, scores=(), **others):
        named = others or {"reward_model": scores}
        self.given = {name: np.asarray(given, np.float32) for name, given in named.items()}
        self.reward_models = tuple(named)

    def scores(self, sequences, name):
        self.seen = sequences
        return self.given[name]


def task(function, name="right") -> Task:
    rewards = (RewardFunction(name, function, weight=2.0),)
    return Task("t", [Example("1")], [], rewards, CharacterTokenizer("0123"))


def completion(*tokens) -> Completion:
    return Completion(np.array(tokens, np.int32), np.zeros(len(tokens), np.float32), "stop", 0)


COMPLETIONS = [[completion(1), completion(2, 3)], [completion(0), completion(3)]]
EXAMPLES = [Example("1"), Example("2")]
PROMPTS = [(1,), (2,)]


def test_functions_and_model_add_up_at_their_weights():
    cluster = FakeCluster([0.5, -1.0, 4.0, 2.0])
    function = task(lambda prompts, completions: [1.0, 0.0, None, 1.0])
    judge = Judge(function, cluster, width=2, model_weights={"reward_model": 0.1})
    scores = judge(EXAMPLES, PROMPTS, COMPLETIONS, step=0)
    # 2·1 + 0.1·0.5 = 2.05;  0 − 0.1 = −0.1;  no function applies: invalid;  2 + 0.2 = 2.2
    np.testing.assert_allclose(scores.rewards, [2.05, -0.1, 0.0, 2.2], rtol=1e-6)
    assert scores.valid.tolist() == [True, True, False, True]
    assert scores.names == judge.names == ("right", "reward_model")
    assert judge.weights == (2.0, 0.1)
    np.testing.assert_array_equal(scores.components[1], cluster.given["reward_model"])
    # The model sees the tokens that were sampled, each with its own prompt.
    assert [p.tolist() for p in cluster.seen.prompts] == [[1], [1], [2], [2]]
    assert [c.tolist() for c in cluster.seen.completions] == [[1], [2, 3], [0], [3]]


def test_several_models_each_at_its_weight():
    cluster = FakeCluster(helpful=[0.5, -1.0, 4.0, 2.0], safe=[1.0, np.nan, 0.0, -3.0])
    function = task(lambda prompts, completions: [1.0, 0.0, 1.0, 1.0])
    judge = Judge(function, cluster, width=2, model_weights={"safe": 0.5, "helpful": 0.1})
    scores = judge(EXAMPLES, PROMPTS, COMPLETIONS, step=0)
    # 2·1 + 0.1·0.5 + 0.5·1 = 2.55;  one model failed: invalid;  2 + 0.4 + 0;  2 + 0.2 − 1.5 = 0.7
    np.testing.assert_allclose(scores.rewards, [2.55, 0.0, 2.4, 0.7], rtol=1e-6)
    assert scores.valid.tolist() == [True, False, True, True]
    assert scores.names == judge.names == ("right", "helpful", "safe")
    # In the order of the cluster's models, not in that of the weights.
    assert judge.weights == (2.0, 0.1, 0.5)
    assert scores.failures == {"safe": 1}
    assert scores.last_error == "reward model 'safe' gave a score that is not finite"
    with pytest.raises(ZootomyError, match=r"Unknown reward model 'save'. Did you mean 'safe'?"):
        Judge(function, cluster, width=2, model_weights={"save": 0.5})


def test_a_score_that_is_not_finite_is_a_failure_and_no_zero():
    cluster = FakeCluster([np.nan, 1.0, np.inf, 1.0])
    judge = Judge(task(lambda prompts, completions: [1.0] * 4), cluster, width=2)
    scores = judge(EXAMPLES, PROMPTS, COMPLETIONS, step=0)
    assert scores.valid.tolist() == [False, True, False, True]
    assert scores.failures == {"reward_model": 2}
    assert scores.last_error == "reward model 'reward_model' gave a score that is not finite"
    assert scores.rewards.tolist() == [0.0, 3.0, 0.0, 3.0]


def test_without_a_reward_model_the_functions_are_all():
    judge = Judge(task(lambda prompts, completions: [1.0] * 4), width=2)
    assert judge.names == ("right",)
    assert judge(EXAMPLES, PROMPTS, COMPLETIONS, step=0).rewards.tolist() == [2.0] * 4


def test_the_name_is_taken():
    with pytest.raises(ZootomyError, match=r"A reward function is named 'reward_model'"):
        Judge(task(lambda p, c: [], name="reward_model"), FakeCluster([]), width=2)


def test_completions_are_judged_as_they_come():
    calls = []

    def right(prompts, completions):
        calls.append(list(completions))
        return [1.0] * len(completions)

    alone = replace(task(right), rewards=(RewardFunction("right", right, 2.0, alone=True),))
    judge = Judge(alone, width=2)
    judging = judge.begin(EXAMPLES, len(COMPLETIONS[0]), 0)
    for request, group in reversed(list(enumerate(COMPLETIONS))):
        for index, completion in enumerate(group):
            judging.add(request, index, completion)
            assert len(calls[-1]) == 1
    found = judge.end(judging, PROMPTS, COMPLETIONS)
    assert len(calls) == 4
    assert found.rewards.tolist() == judge(EXAMPLES, PROMPTS, COMPLETIONS, step=0).rewards.tolist()
