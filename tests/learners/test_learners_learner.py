"""What a learner refuses, and what it does with a real engine."""

import jax
import numpy as np
import pytest
from flax import nnx
from tiny_run import share
from zootomy import (
    Cluster,
    ClusterConfig,
    Learner,
    Role,
    RolloutConfig,
    ZootomyError,
    algorithm,
    block,
    register,
)
from zootomy.clusters import OptimizerConfig
from zootomy.learners import (
    BatchConfig,
    EvaluationConfig,
    WarmupConfig,
    evaluate,
    warm_up,
)
from zootomy.models import make_model
from zootomy.rollout import make_engine
from zootomy.tasks import Demonstration

VOCAB = 12
ADAM = OptimizerConfig(learning_rate=0.02)
ROLLOUT = RolloutConfig(max_prompt_tokens=4, max_new_tokens=2)
BATCH = BatchConfig(full=2, group_size=4)
SHAPE = ClusterConfig(micro_rows=4, sequences_per_row=2)


def policy():
    return make_model("tiny", vocab_size=VOCAB)


def sevens(prompts, completions):
    """The share of sevens among the digits of a completion."""
    return [text.count("7") / max(len(text), 1) for text in completions]


@pytest.fixture(scope="module")
def make_learner(digits, random_engine):
    def build(name, *, rollout=ROLLOUT, batch=BATCH, engine="random", task=None, seed=0,
              changes=None, steps=40, **options):  # fmt: skip
        model = policy()
        if engine == "random":
            engine = random_engine(VOCAB)
        elif engine == "vanilla":
            engine = make_engine(rollout, model)
        cluster = Cluster(
            SHAPE, actor=model, engine=engine, max_tokens=6,
            **{"optimizer": ADAM, "total_steps": steps * batch.updates, **options},
        )  # fmt: skip
        chosen = algorithm(name, **(changes or {}))
        return Learner(
            chosen, task or digits(sevens), cluster, rollout=rollout, batch=batch, seed=seed
        )

    return build


class TestRefusals:
    def fails(self, make_learner, *arguments, **named):
        with pytest.raises(ZootomyError) as error:
            make_learner(*arguments, **named)
        return str(error.value)

    def test_no_engine(self, make_learner):
        assert self.fails(make_learner, "pico", engine=None) == (
            "The cluster has no rollout engine; make it with engine=make_engine(rollout, actor)."
        )

    def test_no_reference(self, make_learner):
        assert self.fails(make_learner, "grpo") == (
            "Algorithm 'grpo' needs a reference, because of kl_placement 'loss', and the cluster "
            "has none. Give the cluster reference='snapshot', or drop what needs it."
        )
        changes = {"regularizer": block("kl", coef=0.1)}
        assert self.fails(make_learner, "pico", changes=changes) == (
            "Algorithm 'pico' needs a reference, because of regularizer 'kl', and the cluster has "
            "none. Give the cluster reference='snapshot', or drop what needs it."
        )

    def test_no_critic(self, make_learner):
        assert self.fails(make_learner, "ppo", reference="snapshot") == (
            "Algorithm 'ppo' needs a critic, and the cluster has none. Give the cluster "
            "critic=ValueModel(...), or use an algorithm without one."
        )

    def test_greedy_sampling(self, make_learner):
        rollout = RolloutConfig(temperature=0.0, max_prompt_tokens=4, max_new_tokens=2)
        assert self.fails(make_learner, "pico", rollout=rollout) == (
            "rollout.temperature is 0: all completions of a prompt would be the same. Training "
            "needs a temperature above 0 (1.0 is usual)."
        )

    @pytest.mark.parametrize("cut", [{"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}])
    def test_truncated_sampling(self, make_learner, cut):
        rollout = RolloutConfig(max_prompt_tokens=4, max_new_tokens=2, **cut)
        assert self.fails(make_learner, "pico", rollout=rollout) == (
            "rollout.top_p, top_k or min_p cut the distribution that is sampled from, and the "
            "trainer's log-probabilities are those of the whole one: the importance ratio would "
            "not start at 1. Train with top_p=1, top_k=None and min_p=0."
        )

    def test_a_group_of_one(self, make_learner):
        batch = BatchConfig(full=2, group_size=1)
        assert self.fails(make_learner, "pico", batch=batch).startswith(
            "reward_shaping 'group_mean' compares the completions of one prompt, but group_size "
            "is 1"
        )

    def test_a_negative_seed(self, make_learner):
        assert self.fails(make_learner, "pico", seed=-1) == "seed must be 0 or more, got -1."

    @pytest.mark.usefixtures("clean_registry")
    def test_a_need_that_nobody_meets(self, make_learner):
        @register("policy_loss", "greedy", needs=("whole_batch", "oracle"))
        def greedy(log_ratio, advantages, logp, old_logp, mask):
            return log_ratio

        assert self.fails(make_learner, "pico", changes={"policy_loss": "greedy"}) == (
            "policy_loss 'greedy' needs oracle, which this learner does not provide; it provides "
            "components, critic, entropy, greedy_baseline, groups, logits, old_logp, "
            "prompt_values, reference, rollout_logp, running_reward, sum_pi_squared, turns, "
            "whole_batch."
        )
        # Before the update the whole batch is there.
        make_learner("pico", changes={"correction": "normalized"})

    def test_a_checkpoint_of_another_run(self, make_learner):
        arrays, record = make_learner("pico").state()
        with pytest.raises(ZootomyError) as error:
            make_learner("pico", seed=1).restore(arrays, record)
        assert str(error.value) == (
            "The checkpoint was written with another seed (its own → this run's): seed: 0 → 1. "
            "Start a new run folder, or resume with the same seed."
        )
        with pytest.raises(ZootomyError, match="The checkpoint was written with another algorithm"):
            make_learner("dr_grpo").restore(arrays, record)


class TestEvaluation:
    def test_it_counts(self, digits, random_engine):
        task = digits(sevens)
        task = type(task)(**{**task.__dict__, "solved_by": "score", "solved_at": 0.5})
        engine = random_engine(VOCAB, lengths=(2,))
        found = evaluate(task, engine, ROLLOUT, EvaluationConfig(size=4), seed=3)
        assert [example.prompt for example in found.examples] == ["0", "1", "2", "3"]
        assert len(found.rewards) == 4
        assert found.metrics["eval/reward/mean"] == pytest.approx(found.rewards.mean())
        assert found.metrics["eval/accuracy"] == np.mean(found.rewards >= 0.5)
        assert found.metrics["eval/invalid"] == 0.0
        assert engine.calls[0][1].greedy
        assert engine.calls[0][2] == 3

    def test_several_samples(self, digits, random_engine):
        engine = random_engine(VOCAB)
        config = EvaluationConfig(size=2, samples=3, temperature=0.6)
        found = evaluate(digits(sevens), engine, ROLLOUT, config)
        assert [len(group) for group in found.completions] == [3, 3]
        assert engine.calls[0][1].temperature == 0.6
        assert found.solved is None
        assert "eval/accuracy" not in found.metrics

    def test_no_reward_is_no_reward_of_zero(self, digits, random_engine):
        task = digits(lambda prompts, completions: [None, 1.0, 1.0, None])
        found = evaluate(task, random_engine(VOCAB), ROLLOUT, EvaluationConfig(size=4))
        assert found.metrics["eval/reward/mean"] == 1.0
        assert found.metrics["eval/invalid"] == 0.5

    def test_nothing_held_out(self, digits, random_engine):
        with pytest.raises(ZootomyError) as error:
            evaluate(digits(sevens, eval=[]), random_engine(), ROLLOUT, EvaluationConfig())
        assert str(error.value) == "Task 'digits' has no held-out examples to evaluate on."


class TestWarmUp:
    def run(self, digits, config, **options):
        losses = []
        demonstrations = [Demonstration(str(i), "7") for i in range(4)]
        task = digits(sevens, **{"demonstrations": demonstrations, **options})
        model = policy()
        trained = warm_up(
            model, task, config=config, cluster=SHAPE, rollout=ROLLOUT, seed=0,
            report=lambda step, loss: losses.append(loss),
        )  # fmt: skip
        return model, trained, losses

    def test_it_imitates(self, digits):
        config = WarmupConfig(steps=15, batch=4, learning_rate=0.02)
        model, trained, losses = self.run(digits, config)
        # Nats a token: that of a uniform guess at first.
        assert losses[0] == pytest.approx(np.log(VOCAB), abs=0.5)
        assert losses[-1] < 0.3
        assert len(losses) == 15
        leaves = [jax.tree.leaves(nnx.state(m, nnx.Param)) for m in (model, policy())]
        assert all(np.array_equal(a, b) for a, b in zip(*leaves, strict=True))
        assert trained is not model

    def test_no_steps_and_one(self, digits):
        model, trained, losses = self.run(digits, WarmupConfig(steps=0))
        assert trained is model
        assert losses == []
        _, _, losses = self.run(digits, WarmupConfig(steps=1, batch=4))
        assert len(losses) == 1

    def test_without_demonstrations(self, digits):
        with pytest.raises(ZootomyError) as error:
            self.run(digits, WarmupConfig(steps=1), demonstrations=None)
        assert str(error.value) == (
            "Task 'digits' has no demonstrations to warm up on; set warmup.steps to 0 and start "
            "from a model that can do the task now and then."
        )


def weights(learner):
    state = nnx.state(learner.cluster.model(Role.ACTOR), nnx.Param)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state)]


def run(learner, steps, examine=False):
    reports = []
    for _ in range(steps):
        report = learner.step()
        reports.append(
            {k: v for k, v in report.metrics.items() if "time" not in k and "second" not in k}
        )
        if examine:
            learner.evaluate(EvaluationConfig(size=2))
    return reports


def test_a_seed_fixes_a_run_and_evaluation_does_not_disturb_it(make_learner):
    one = make_learner("dr_grpo", engine="vanilla")
    other = make_learner("dr_grpo", engine="vanilla")
    reports = run(one, 3)
    assert run(other, 3, examine=True) == reports  # to the last bit
    assert all(np.array_equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))
    third = make_learner("dr_grpo", engine="vanilla", seed=1)
    assert run(third, 1)[0] != reports[0]
    orders = [learner.collector.order.take(0, 6) for learner in (one, third)]
    assert orders[0] != orders[1]


@pytest.mark.parametrize(("reward", "updates"), [(share, 2), (lambda p, c: [1.0] * len(c), 0)])
def test_a_batch_is_told_once_before_it_is_learned(make_learner, digits, reward, updates):
    learner = make_learner(
        "dapo", task=digits(reward), changes={"group_filter.strategy": "drop"},
        batch=BatchConfig(full=2, mini=1, group_size=4),
    )  # fmt: skip
    told = []
    report = learner.step(lambda batch: told.append((batch, learner.cluster.steps(Role.ACTOR))))
    assert told == [(report.collected, 0)]
    assert learner.cluster.steps(Role.ACTOR) == updates


@pytest.mark.parametrize("name", ["grpo", "reinforce_pp_baseline"])
def test_a_policy_learns(make_learner, name):
    """Sevens are one token of twelve; soon there is little else."""
    learner = make_learner(
        name, engine="vanilla", reference="snapshot", batch=BatchConfig(full=4, group_size=8)
    )
    rewards = [metrics["reward/mean"] for metrics in run(learner, 30)]
    assert np.mean(rewards[:2]) < 0.25
    assert np.mean(rewards[-3:]) > 0.8
    # The engine samples from the newest weights.
    assert learner.cluster.engine.version == 30
