"""Filling a batch: order, filters with their caps, and rewards that fail; no model in it."""

from dataclasses import replace

import numpy as np
import pytest
from zootomy import RolloutConfig, ZootomyError, algorithm, block
from zootomy.learners import BatchConfig
from zootomy.learners.collect import Collector
from zootomy.learners.judge import Judge
from zootomy.learners.statistics import rollout_metrics
from zootomy.rollout import Finished
from zootomy.tasks import RewardFunction

ROLLOUT = RolloutConfig(max_prompt_tokens=4, max_new_tokens=3)


class Table:
    """A reward function that reads its values from a table: prompt index -> G rewards."""

    def __init__(self, table, default=(0.0, 1.0)):
        self.table, self.default = table, default
        self.seen = []

    def __call__(self, prompts, completions, index, step):
        self.seen.append((list(prompts), list(index), step))
        rewards = []
        for n, i in enumerate(index):
            values = self.table.get(i, self.default)
            rewards.append(values[n % len(values)])
        return rewards


def collector(digits, engine, function, *, full=2, group=2, name="dr_grpo", **changes):
    task = digits(function)
    return Collector(
        algorithm(name, **changes),
        task,
        Judge(task, width=ROLLOUT.max_new_tokens),
        engine,
        ROLLOUT,
        BatchConfig(full=full, group_size=group),
        seed=0,
    )


def fails(collect, *arguments):
    with pytest.raises(ZootomyError) as error:
        collect(*arguments)
    return str(error.value)


def test_a_batch_without_a_filter(digits, random_engine):
    engine, table = random_engine(), Table({})
    collect = collector(digits, engine, table, full=3, group=2).collect
    found = collect(0, 5)
    assert [len(group.completions) for group in found.groups] == [2, 2, 2]
    assert found.consumed == 3
    assert found.refills == 0
    assert found.groups == found.sampled
    # Columns and prompts are repeated for each completion, in order; the step reaches the reward.
    prompts, index, step = table.seen[0]
    first, second, third = (group.example for group in found.groups)
    assert index == [first, first, second, second, third, third]
    assert prompts == [str(i) for i in index]
    assert step == 5
    for group in found.groups:
        assert group.prompt == (group.example + 2,)  # id 2 is "0"
        np.testing.assert_array_equal(group.rewards, [0, 1])
        assert group.valid.all()
        assert group.teaches
        np.testing.assert_array_equal(group.components, [[0, 1]])


def test_the_cursor_addresses_the_prompts(digits, random_engine):
    collect = collector(digits, random_engine(), Table({}), full=2).collect
    steps = [collect(cursor, step) for step, cursor in enumerate((0, 2, 4, 6))]
    taken = [[group.example for group in found.groups] for found in steps]
    # 6 prompts: three steps see each once, the fourth begins the next epoch in another order.
    assert sorted(taken[0] + taken[1] + taken[2]) == [0, 1, 2, 3, 4, 5]
    again = collector(digits, random_engine(), Table({}), full=2).collect(2, 1)
    assert [group.example for group in again.groups] == taken[1]
    for one, other in zip(again.groups, steps[1].groups, strict=True):
        for a, b in zip(one.completions, other.completions, strict=True):
            np.testing.assert_array_equal(a.tokens, b.tokens)


def test_every_call_has_its_own_seed(digits, random_engine):
    engine = random_engine()
    silent = dict.fromkeys(range(4), (1.0, 1.0))
    collect = collector(
        digits, engine, Table(silent), group_filter=block("zero_std", strategy="refill")
    )
    collect.collect(0, 0)
    collect.collect(0, 1)
    seeds = [seed for _, _, seed in engine.calls]
    assert len(seeds) > 2
    assert len(set(seeds)) == len(seeds)
    assert None not in seeds


class TestRefill:
    FILTER = block("zero_std", strategy="refill", max_refills=2)

    def test_it_samples_until_the_batch_is_full(self, digits, random_engine):
        engine = random_engine()
        order = collector(digits, engine, Table({})).order.take(0, 6)
        silent = {order[0]: (1.0, 1.0), order[2]: (0.0, 0.0)}
        found = collector(digits, engine, Table(silent), group_filter=self.FILTER).collect(0, 0)
        # round 1: order[0] (silent), order[1]; round 2: order[2] (silent); round 3: order[3]
        assert [group.example for group in found.groups] == [order[1], order[3]]
        assert [len(requests) for requests, _, _ in engine.calls] == [2, 1, 1]
        assert (found.consumed, found.refills) == (4, 2)
        assert [group.example for group in found.sampled] == order[:4]
        assert [group.teaches for group in found.sampled] == [False, True, False, True]
        metrics = rollout_metrics(found, ("score",))
        assert metrics["filter/refills"] == 2
        assert metrics["filter/dropped_groups"] == 2
        # The metrics speak of all that was sampled: 2 of 4 groups are silent.
        assert metrics["frac_reward_zero_std"] == 0.5
        assert metrics["reward/mean"] == pytest.approx((1 + 1 + 0 + 0 + 4 * 0.5) / 8)

    def test_the_cap_is_an_error_with_a_name(self, digits, random_engine):
        engine = random_engine()
        always = Table({}, default=(1.0, 1.0))
        text = fails(collector(digits, engine, always, group_filter=self.FILTER).collect, 0, 7)
        assert text == (
            "Step 7: only 0 of 2 groups passed group_filter 'zero_std' after 2 refills. The "
            "prompts may be too easy or too hard; raise group_filter.max_refills, set "
            "group_filter.when_short to 'train' to train on what there is, or set group_filter to "
            "'none'."
        )
        assert len(engine.calls) == 3  # the first round and two refills, not one more

    def test_no_refills_at_all(self, digits, random_engine):
        engine = random_engine()
        never = self.FILTER.replace(max_refills=0)
        always = Table({}, default=(1.0, 1.0))
        assert "after 0 refills" in fails(
            collector(digits, engine, always, group_filter=never).collect, 0, 0
        )
        assert len(engine.calls) == 1

    def test_or_a_short_batch_where_that_is_asked_for(self, digits, random_engine):
        engine = random_engine()
        order = collector(digits, engine, Table({})).order.take(0, 6)
        table = Table({order[1]: (0.0, 1.0)}, default=(1.0, 1.0))
        short = self.FILTER.replace(when_short="train")
        found = collector(digits, engine, table, group_filter=short).collect(0, 0)
        # The shapes stay: the place that is left is taken by a group that is not trained on.
        assert [group.teaches for group in found.groups] == [True, False]
        assert found.groups[0].example == order[1]
        assert found.consumed == 4

    def test_a_round_without_a_reward_is_no_end(self, digits, random_engine):
        engine = random_engine()
        order = collector(digits, engine, Table({})).order.take(0, 6)
        table = Table({order[0]: (1.0, 1.0), order[2]: (None, None)})
        found = collector(digits, engine, table, group_filter=self.FILTER).collect(0, 0)
        assert [group.example for group in found.groups] == [order[1], order[3]]

    def test_dapo_does_it_by_name(self, digits, random_engine):
        engine = random_engine()
        order = collector(digits, engine, Table({})).order.take(0, 6)
        table = Table({order[0]: (1.0, 1.0)})
        found = collector(digits, engine, table, name="dapo").collect(0, 0)
        assert [group.example for group in found.groups] == order[1:3]


@pytest.mark.parametrize("strategy", ["drop", "replace"])
def test_drop_and_replace(digits, random_engine, strategy):
    engine = random_engine()
    order = collector(digits, engine, Table({})).order.take(0, 4)
    silent = Table({order[0]: (1.0, 1.0), order[3]: (0.0, 0.0)})
    changes = {"group_filter": block("zero_std", strategy=strategy)}
    found = collector(digits, engine, silent, full=4, **changes).collect(0, 0)
    assert found.consumed == 4
    assert len(engine.calls) == 1
    examples = [group.example for group in found.groups]
    teaches = [group.teaches for group in found.groups]
    if strategy == "drop":
        assert examples == order
        assert teaches == [False, True, True, False]
    else:
        assert examples == [order[1], order[1], order[2], order[2]]
        assert teaches == [True] * 4


def test_replace_with_nothing_to_put_in(digits, random_engine):
    changes = {"group_filter": block("zero_std", strategy="replace")}
    table = Table({}, default=(1.0, 1.0))
    found = collector(digits, random_engine(), table, **changes).collect(0, 0)
    assert [group.teaches for group in found.groups] == [False, False]


def test_a_score_range(digits, random_engine):
    engine = random_engine()
    order = collector(digits, engine, Table({})).order.take(0, 3)
    table = Table({order[0]: (1.0, 1.0), order[2]: (0.0, 0.0)})
    changes = {"group_filter": "score_range"}
    found = collector(digits, engine, table, full=3, **changes).collect(0, 0)
    assert [group.teaches for group in found.groups] == [False, True, False]


class TestRewards:
    def test_none_and_nan_are_invalid_and_never_zero(self, digits, random_engine):
        engine = random_engine()
        order = collector(digits, engine, Table({})).order.take(0, 2)
        table = Table({order[0]: (1.0, None, 1.0), order[1]: (float("nan"), 1.0, 0.0)})
        found = collector(digits, engine, table, group=3).collect(0, 0)
        first, second = found.groups
        assert first.valid.tolist() == [True, False, True]
        assert second.valid.tolist() == [False, True, True]
        # None is no failure, NaN is one.
        assert dict(found.failures) == {"score": 1}
        metrics = rollout_metrics(found, ("score",))
        assert metrics["reward/mean"] == 0.75  # (1 + 1 + 1 + 0) / 4, not / 6
        assert metrics["reward/score/failed"] == 1
        assert metrics["completions/invalid"] == pytest.approx(2 / 6)
        assert metrics["reward/std"] == pytest.approx((0 + 0.5**0.5) / 2)

    def test_all_none_is_an_error(self, digits, random_engine):
        table = Table({}, default=(None,))
        assert fails(collector(digits, random_engine(), table).collect, 0, 3) == (
            "Step 3: none of the 4 completions has a reward: every reward function gave None. Fix "
            "the reward function, or give one that applies to these prompts."
        )

    def test_a_function_that_raises_is_named(self, digits, random_engine):
        def broken(prompts, completions):
            raise KeyError("gold")

        line = broken.__code__.co_firstlineno + 1
        assert fails(collector(digits, random_engine(), broken).collect, 0, 0) == (
            "Step 0: none of the 4 completions has a reward: reward function 'score' raised "
            f"KeyError: 'gold' at {__file__}:{line}. Fix the reward function, or give one that "
            "applies to these prompts."
        )

    def test_a_column_that_is_not_there(self, digits, random_engine):
        def wants(prompts, completions, answer):
            return [0.0] * len(prompts)

        text = fails(collector(digits, random_engine(), wants).collect, 0, 0)
        assert "'score'" in text
        assert "answer" in text

    def test_equal_rewards_have_no_deviation(self, digits, random_engine):
        # The float32 mean of seven times 0.1 is not 0.1.
        table = Table({}, default=(0.1,) * 7)
        found = collector(digits, random_engine(), table, group=7).collect(0, 0)
        metrics = rollout_metrics(found, ("score",))
        assert metrics["reward/std"] == 0.0
        assert metrics["frac_reward_zero_std"] == 1.0

    def test_an_invalid_reward_is_not_in_the_deviation(self, digits, random_engine):
        table = Table({}, default=(1.0, 2.0, None))
        found = collector(digits, random_engine(), table, group=3).collect(0, 0)
        # Of 1 and 2, with ddof 1: √(2 · 0.5²) = 0.7071. With None as 0 it would be 1.
        assert rollout_metrics(found, ("score",))["reward/std"] == pytest.approx(0.5**0.5)

    def test_one_valid_reward_has_no_deviation(self, digits, random_engine):
        table = Table({}, default=(3.0, None, None))
        found = collector(digits, random_engine(), table, group=3).collect(0, 0)
        metrics = rollout_metrics(found, ("score",))
        assert metrics["reward/std"] == 0.0
        assert metrics["completions/invalid"] == pytest.approx(2 / 3)

    def test_several_functions_are_logged_apart(self, digits, random_engine):
        task = digits(lambda prompts, completions: [1.0, None] * (len(prompts) // 2))
        half = RewardFunction("half", lambda prompts, completions: [0.5] * len(prompts), weight=2.0)
        task = type(task)(**{**task.__dict__, "rewards": (*task.rewards, half)})
        found = Collector(
            algorithm("dr_grpo"), task, Judge(task, width=3), random_engine(), ROLLOUT,
            BatchConfig(full=2, group_size=2), seed=0,
        ).collect(0, 0)  # fmt: skip
        np.testing.assert_array_equal(found.groups[0].rewards, [2.0, 1.0])
        metrics = rollout_metrics(found, ("score", "half"))
        # One None does not make the mean NaN, nor count as 0.
        assert metrics["reward/score/mean"] == 1.0
        assert metrics["reward/half/mean"] == 0.5


class TestPrompts:
    def build(self, digits, engine, overlong):
        task = digits(lambda prompts, completions: [1.0] * len(prompts))
        example = type(task.train[0])("123456", {})
        task = type(task)(**{**task.__dict__, "train": [example], "eval": []})
        rollout = RolloutConfig(max_prompt_tokens=4, max_new_tokens=3, overlong_prompts=overlong)
        batch = BatchConfig(full=1, group_size=2)
        judge = Judge(task, width=3)
        return Collector(algorithm("dr_grpo"), task, judge, engine, rollout, batch, seed=0)

    def test_too_long_is_an_error(self, digits, random_engine):
        assert fails(self.build(digits, random_engine(), "error").collect, 0, 0) == (
            "prompt 0 has 6 tokens; max_prompt_tokens is 4. Raise rollout.max_prompt_tokens, "
            "shorten the prompt, or set rollout.overlong_prompts='truncate' (keeps the last tokens)"
        )

    def test_engine_and_trainer_see_the_same_cut_prompt(self, digits, random_engine):
        engine = random_engine()
        found = self.build(digits, engine, "truncate").collect(0, 0)
        last_four = (5, 6, 7, 8)  # "3456"
        assert engine.calls[0][0][0].prompt == last_four
        assert found.groups[0].prompt == last_four

    def test_the_engine_gets_the_stop_ids_and_limits(self, digits, random_engine):
        engine = random_engine()
        self.build(digits, engine, "truncate").collect(0, 0)
        sampling = engine.calls[0][1]
        assert (sampling.stop_ids, sampling.max_new_tokens) == ((1,), 3)


def test_lengths_and_stops(digits, random_engine):
    # Lengths (1, 3, 2) in turn: requests 0 and 1 of two completions have 1, 3 and 3, 2.
    found = collector(digits, random_engine(), Table({})).collect(0, 0)
    metrics = rollout_metrics(found, ("score",))
    assert metrics["completions/mean_length"] == 9 / 4
    assert metrics["completions/max_length"] == 3
    assert metrics["completions/min_length"] == 1
    assert metrics["completions/clipped_ratio"] == 0.5


class TestStreaming:
    def test_what_is_finished_is_judged_while_others_are_sampled(self, digits, random_engine):
        events = []

        class Streaming(random_engine):
            def stream(self, requests, sampling, seed=None):
                groups = self.generate(requests, sampling, seed)
                for r, c in ((1, 0), (0, 1), (1, 1), (0, 0)):
                    events.append("sampled")
                    yield Finished(r, c, groups[r][c])

        def score(prompts, completions, index):
            events.append("judged")
            return [index[0] + len(completions[0]) / 10]

        def build(engine, alone):
            task = digits(score)
            task = replace(task, rewards=(replace(task.rewards[0], alone=alone),))
            batch = BatchConfig(full=2, group_size=2)
            judge = Judge(task, width=3)
            return Collector(algorithm("dr_grpo"), task, judge, engine, ROLLOUT, batch, seed=0)

        streamed = build(Streaming(), alone=True).collect(0, 0)
        assert events == ["sampled", "judged"] * 4
        at_the_end = build(random_engine(), alone=True).collect(0, 0)
        for a, b in zip(streamed.groups, at_the_end.groups, strict=True):
            np.testing.assert_array_equal(a.rewards, b.rewards)
            assert [c.tokens.tolist() for c in a.completions] == [
                c.tokens.tolist() for c in b.completions
            ]
