"""The learner with several reward models, and with a critic on the actor's backbone."""

import jax
import numpy as np
import pytest
import tiny_run
from flax import nnx
from zootomy import Role, ZootomyError
from zootomy.clusters import OptimizerConfig
from zootomy.clusters.naming import named_leaves
from zootomy.learners.score_scale import ScoreScale
from zootomy.models import RewardModel

LINEAR = OptimizerConfig(learning_rate=0.01, schedule="linear")
SHARED = {"critic": "shared", "critic_optimizer": LINEAR}
CHANGES = {"value_loss": "mse", "kl_placement": "none", "controller.coef": 0.0}


def scorer(seed):
    model = RewardModel(tiny_run.TINY, rngs=nnx.Rngs(seed))
    kernel = np.random.default_rng(seed).normal(size=model.score.kernel.shape)
    model.score.kernel.set_value(jax.numpy.asarray(3 * kernel, "float32"))
    return model


def params(learner):
    state = learner.cluster.state().arrays["actor"]["params"]
    return {name: np.array(x) for name, x in named_leaves(state).items()}


@pytest.fixture(scope="module")
def shared(tiny_learner):
    def build(coef=None, warmup=0, **options):
        learning = {"value_coef": coef, "critic_warmup": warmup}
        return tiny_learner("ppo", changes=CHANGES, learning=learning, **SHARED, **options)

    return build


def test_one_objective_of_both_parts(shared):
    metrics = shared(mini=2).step().metrics
    double = shared(mini=2, coef=0.2).step().metrics
    # The factor is 0.1 where none is given; the second mini-batch comes after another step.
    assert double["value_loss"] == pytest.approx(2 * metrics["value_loss"], rel=0.05)
    assert {"policy_loss", "value_loss", "value/mean", "lr", "critic/lr", "entropy"} <= set(metrics)
    assert "critic/grad_norm" not in metrics
    # Two mini-batches: the second step of the head, of 40, by the schedule of its optimizer.
    assert metrics["critic/lr"] == pytest.approx(0.01 * (1 - 1 / 40))
    assert metrics["lr"] == tiny_run.ADAM.learning_rate
    # Log-probabilities and values come from one pass, before the update as in it.
    assert {"time/old_logp", "time/train"} <= set(metrics)
    assert not {"time/values", "time/critic"} & set(metrics)


def test_it_learns_a_constant_reward(shared):
    def ones(prompts, completions):
        return [1.0] * len(prompts)

    learner = shared(coef=1.0, function=ones, mini=2)
    losses = [learner.step().metrics for _ in range(12)]
    assert losses[-1]["value_loss"] < 0.3 * losses[0]["value_loss"]
    assert learner.cluster.steps(Role.CRITIC) == learner.cluster.steps(Role.ACTOR) == 24


def test_the_warm_up_trains_the_head_alone(shared):
    learner = shared(warmup=1)
    before = params(learner)
    metrics = learner.step().metrics
    assert "policy_loss" not in metrics
    assert {"value_loss", "critic/grad_norm", "critic/lr"} <= set(metrics)
    after = params(learner)
    moved = [name for name in before if not np.array_equal(before[name], after[name])]
    assert moved == ["score.kernel"]
    assert (learner.cluster.steps(Role.ACTOR), learner.cluster.steps(Role.CRITIC)) == (0, 1)
    assert "policy_loss" in learner.step().metrics
    moved = [name for name, x in params(learner).items() if not np.array_equal(after[name], x)]
    assert len(moved) == len(after)


def test_a_factor_without_effect_is_refused(tiny_learner, shared):
    with pytest.raises(ZootomyError) as caught:
        tiny_learner("ppo", changes=CHANGES, learning={"value_coef": 0.5})
    assert str(caught.value) == (
        "value_coef is 0.5, but the critic has a backbone of its own, so it has no effect. Make "
        "the cluster with critic='shared', or leave it out."
    )
    with pytest.raises(ZootomyError, match=r"^value_coef must be above 0, got 0\.0\.$"):
        shared(coef=0.0)


@pytest.fixture(scope="module")
def judged(tiny_learner):
    """Two reward models beside a function: one normalised and clipped, one as it is."""

    def build(**options):
        scales = {
            "kind": ScoreScale(weight=0.5, normalize=True, clip=1.5),
            "safe": ScoreScale(weight=-0.25),
        }
        return tiny_learner(
            "ppo", changes=CHANGES, learning={"score_scales": scales}, **SHARED,
            reward={"kind": scorer(1), "safe": scorer(2)}, **options,
        )  # fmt: skip

    return build


def test_functions_and_models_add_up_and_each_is_logged(judged):
    learner = judged()
    report = learner.step()
    metrics = report.metrics
    for name in ("score", "kind", "safe"):
        assert f"reward/{name}/mean" in metrics
    components = np.stack([group.components for group in report.collected.sampled], axis=1)
    rewards = np.stack([group.rewards for group in report.collected.sampled])
    total = components[0] + 0.5 * components[1] - 0.25 * components[2]
    np.testing.assert_allclose(rewards, total, atol=1e-5)
    assert np.abs(components[1]).max() <= 1.5
    assert metrics["reward/kind/mean"] == pytest.approx(components[1].mean(), abs=1e-5)
    # The first batch's own mean is the running one.
    assert metrics["reward/kind/raw_mean"] == pytest.approx(metrics["reward/kind/running_mean"])
    assert "reward/safe/raw_mean" not in metrics
    seen = {metrics["reward/kind/running_mean"], learner.step().metrics["reward/kind/running_mean"]}
    assert len(seen) == 2


def test_running_statistics_and_the_shared_critic_are_resumed_bit_for_bit(judged):
    one = judged(mini=2)
    for _ in range(2):
        one.step()
    arrays, record = one.state()
    other = judged(mini=2)
    other.restore(arrays, record)
    ours, theirs = ([learner.step().metrics for _ in range(2)] for learner in (one, other))
    for a, b in zip(ours, theirs, strict=True):
        for name in a:
            if not name.startswith(("time", "tokens_per_second")):
                assert a[name] == b[name], name
    for name, array in params(one).items():
        np.testing.assert_array_equal(params(other)[name], array, err_msg=name)
    # Another learner that had seen nothing would scale by its first batch.
    assert float(one.memory.scores[0].count) == 4 * 8


def test_a_scale_of_a_model_that_is_not_there_is_refused(tiny_learner):
    with pytest.raises(ZootomyError, match=r"^Unknown reward model 'kynd'\. Did you mean 'kind'"):
        tiny_learner(
            "rloo", learning={"score_scales": {"kynd": ScoreScale()}}, reward={"kind": scorer(1)}
        )


def test_a_critic_of_its_own_has_a_schedule_of_its_own(tiny_learner):
    learner = tiny_learner("ppo", changes=CHANGES, mini=2, critic_optimizer=LINEAR)
    metrics = learner.step().metrics
    assert metrics["critic/lr"] == pytest.approx(0.01 * (1 - 1 / 40))
    assert metrics["lr"] == tiny_run.ADAM.learning_rate
    # What takes no part in the other's passes has a pass of its own.
    assert {"critic/grad_norm", "time/values", "time/critic"} <= set(metrics)
