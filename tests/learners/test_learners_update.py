"""Optimizer steps on a real cluster: the gradient, the counts, the critic, the controllers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from zootomy import (
    Cluster,
    ClusterConfig,
    Learner,
    Role,
    RolloutConfig,
    algorithm,
    assemble,
    block,
    register,
)
from zootomy.clusters import NonFiniteError, OptimizerConfig
from zootomy.learners import BatchConfig
from zootomy.learners.collect import Collected, Group
from zootomy.learners.update import Updater
from zootomy.models import Decoder, ModelConfig, ValueModel
from zootomy.monitor import Spans
from zootomy.registry import names
from zootomy.rollout import Completion

VOCAB, WIDTH = 12, 3
TINY = ModelConfig(
    vocab_size=VOCAB, hidden_size=8, intermediate_size=16, num_layers=1, num_heads=2,
    num_kv_heads=1, head_dim=4, initializer_range=0.5,
)  # fmt: skip
PLAIN_SGD = OptimizerConfig(name="sgd", learning_rate=1.0, max_grad_norm=None)
ADAM = OptimizerConfig(learning_rate=0.02)
ROLLOUT = RolloutConfig(max_prompt_tokens=4, max_new_tokens=WIDTH)
# One controller for all tests: each algorithm is compiled once, which is what takes the time.
ADAPTIVE = {"controller": block("adaptive_kl", coef=0.1, target=1e3, horizon=80)}


def actor():
    return Decoder(TINY, rngs=nnx.Rngs(0))


def critic():
    return ValueModel.from_decoder(actor(), rngs=nnx.Rngs(1))


def make_cluster(rows=4, length=8, per_row=2, **options):
    config = ClusterConfig(micro_rows=rows, row_length=length, sequences_per_row=per_row)
    return Cluster(
        config, **{"actor": actor(), "optimizer": PLAIN_SGD, "total_steps": 40, **options}
    )


def params(cluster, role=Role.ACTOR):
    state = nnx.state(cluster.model(role), nnx.Param)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state)]


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


class TestGradient:
    """One sgd step at learning rate 1: the change of the weights is minus the gradient."""

    SHAPES = ((4, 8, 1), (1, 7, 2), (3, 24, 4))  # micro rows, row length, sequences a row
    CHOSEN = algorithm(
        "pico", ratio="token", policy_loss="ppo_clip", regularizer=block("entropy", coef=0.1)
    )

    @pytest.fixture(scope="class")
    @classmethod
    def updaters(cls):
        made = []
        for shape in cls.SHAPES:
            cluster = make_cluster(*shape)
            updater = Updater(
                cls.CHOSEN, cluster, batch=BatchConfig(full=2, group_size=3),
                temperature=0.7, width=WIDTH, seed=0,
            )  # fmt: skip
            made.append((updater, cluster, cluster.state()))
        return made

    def collected(self, seed, lengths, prompts):
        rng = np.random.default_rng(seed)
        groups = []
        for p in range(2):
            completions = [
                Completion(
                    rng.integers(0, VOCAB, n).astype(np.int32),
                    np.full(n, -2.0, np.float32),
                    "stop",
                    0,
                )
                for n in lengths[p * 3 : p * 3 + 3]
            ]
            rewards = rng.normal(size=3).astype(np.float32)
            prompt = tuple(int(t) for t in rng.integers(0, VOCAB, prompts[p]))
            valid = rng.random(3) < 0.8
            groups.append(Group(p, prompt, completions, rewards, valid, rewards[None], True))
        return Collected(groups, 2, groups, 0, {})

    @settings(max_examples=10)
    @given(
        seed=st.integers(0, 2**31),
        lengths=st.lists(st.integers(1, WIDTH), min_size=6, max_size=6),
        prompts=st.lists(st.integers(1, 4), min_size=2, max_size=2),
        aggregation=st.sampled_from(names("aggregation")),
    )
    def test_it_is_the_same_in_any_shape(self, updaters, seed, lengths, prompts, aggregation):
        weights = assemble(algorithm("pico", aggregation=aggregation)).weights
        found = []
        for updater, cluster, start in updaters:
            cluster.restore(start)
            before = params(cluster)
            updater._weights = weights
            metrics = updater.update(
                self.collected(seed, lengths, prompts), 0, {}, Spans()
            ).result()
            change = [a - b for a, b in zip(before, params(cluster), strict=True)]
            found.append((change, metrics))
        for change, metrics in found[1:]:
            for a, b in zip(change, found[0][0], strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
            assert metrics.keys() == found[0][1].keys()
            for name in metrics:
                assert metrics[name] == pytest.approx(found[0][1][name], rel=1e-4, abs=1e-5), name


@pytest.fixture(scope="module")
def learner_of(digits, random_engine):
    """Learners on one small shape of batch, whose completions are random tokens."""

    def reward(prompts, completions, index):
        # Differs within a group, by the digits that were drawn.
        return [float(sum(map(int, text or "0"))) for text in completions]

    def build(name, *, full=4, mini=None, epochs=1, seed=0, function=reward, warmup=0,
              optimizer=ADAM, steps=10, changes=None, **options):  # fmt: skip
        chosen = algorithm(name, **(changes or {}))
        batch = BatchConfig(full=full, mini=mini, group_size=2, epochs=epochs)
        given = {"optimizer": optimizer, "total_steps": steps * batch.updates}
        if "reference" in chosen.needs:
            given["reference"] = "snapshot"
        if chosen.value_loss is not None:
            given |= {"critic": critic(), "critic_optimizer": ADAM}
        cluster = make_cluster(engine=random_engine(VOCAB), **{**given, **options})
        return Learner(
            chosen, digits(function), cluster, rollout=ROLLOUT, batch=batch, seed=seed,
            critic_warmup=warmup,
        )  # fmt: skip

    return build


def test_counts_of_epochs_and_mini_batches(learner_of):
    linear = OptimizerConfig(learning_rate=1.0, schedule="linear", name="sgd", max_grad_norm=1e-6)
    learner = learner_of("dr_grpo", mini=2, epochs=2, optimizer=linear, steps=10)
    # 2 epochs x 2 mini-batches: 4 optimizer steps a step, 40 in all.
    report = learner.step()
    assert (report.step, learner.steps_done) == (1, 1)
    assert learner.cluster.steps(Role.ACTOR) == 4
    assert learner.cluster.version == 1
    assert learner.cursor == 4
    # The horizon counts optimizer steps: the fourth is at 1 - 3/40. Counted in batches of 10 it
    # would be 1 - 3/10, and 0 in the third step.
    assert report.metrics["lr"] == pytest.approx(1 - 3 / 40)
    learner.step()
    report = learner.step()
    assert learner.cluster.steps(Role.ACTOR) == 12
    assert report.metrics["lr"] == pytest.approx(1 - 11 / 40)
    assert report.metrics["epoch"] == 2.0


def test_mini_batches_cover_the_batch_once_an_epoch(learner_of):
    learner = learner_of("dr_grpo", mini=2, epochs=3)
    collected = learner.collector.collect(0, 0)
    seen = []
    update = learner.cluster.update

    def spy(role, sequences, batch, *arguments, **named):
        experience, weights, _ = batch
        seen.append((len(sequences), np.unique(experience.group_ids), weights.sum()))
        return update(role, sequences, batch, *arguments, **named)

    learner.cluster.update = spy
    learner.updater.update(collected, 0, {"kl": 0.0}, Spans())
    assert len(seen) == 6
    for epoch in range(3):
        both = np.concatenate([groups for _, groups, _ in seen[2 * epoch : 2 * epoch + 2]])
        assert sorted(both) == [0, 1, 2, 3]  # whole groups, each once
    orders = {tuple(seen[2 * epoch][1]) for epoch in range(3)}
    assert len(orders) > 1  # cut otherwise from epoch to epoch


def test_metrics_of_a_step(learner_of):
    learner = learner_of("grpo", changes=ADAPTIVE)
    metrics = learner.step().metrics
    for name in (
        "reward/mean", "reward/std", "frac_reward_zero_std", "kl", "entropy", "clip_ratio",
        "completions/mean_length", "completions/max_length", "completions/clipped_ratio",
        "grad_norm", "policy_loss", "kl_loss", "lr", "tokens_per_second",
        "time/rollout", "time/train", "time/step", "kl_coefficient", "epoch",
    ):  # fmt: skip
        assert name in metrics, name
    # At the first step the policy is the reference and the ratio is 1.
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["clip_ratio"] == 0.0
    assert metrics["approx_kl"] == 0.0
    assert 0 < metrics["entropy"] <= np.log(VOCAB) + 1e-5
    assert all(np.isfinite(value) for value in metrics.values())
    # Parts of the loss reach the log; the advantages of a group of equal weight cancel.
    metrics = learner.step().metrics
    assert metrics["kl_loss"] > 0
    assert metrics["policy_loss"] == pytest.approx(0.0, abs=1e-6)


def test_the_reference_stays_and_the_policy_leaves_it(learner_of):
    learner = learner_of("grpo", changes=ADAPTIVE)
    reference = params(learner.cluster, Role.REFERENCE)
    learner.step()
    assert learner.step().metrics["kl"] > 1e-5
    assert same(params(learner.cluster, Role.REFERENCE), reference)


def test_beta_has_an_effect(learner_of):
    ends = []
    for coefficient in (0.04, 4.0):
        learner = learner_of("grpo", changes=ADAPTIVE)
        learner.controller_states["kl"]["coefficient"] = coefficient
        assert learner.step().metrics["kl_coefficient"] == coefficient
        for _ in range(2):
            metrics = learner.step().metrics
        ends.append(metrics["kl"])
    assert ends[1] < ends[0]


@pytest.mark.parametrize("placement", ["loss", "reward"])
def test_adaptive_kl_moves(learner_of, placement):
    in_reward = {"kl_placement": "reward", "kl_estimator": "k1"}
    changes = ADAPTIVE | (in_reward if placement == "reward" else {})
    learner = learner_of("grpo", changes=changes)
    assert learner.step().metrics["kl_coefficient"] == 0.1
    # Far below the target: 0.1 * (1 - 0.2 * 8 completions / 80) = 0.098
    assert learner.step().metrics["kl_coefficient"] == pytest.approx(0.098)
    assert learner.controller_states["kl"]["coefficient"] == pytest.approx(0.098 * 0.98)


def test_an_adaptive_coefficient_stands_still_while_nothing_is_learned(learner_of):
    learner = learner_of(
        "grpo",
        changes={**ADAPTIVE, "group_filter": "zero_std"},
        function=lambda prompts, completions: [1.0] * len(prompts),
    )
    before = params(learner.cluster)
    metrics = learner.step().metrics
    assert metrics["filter/dropped_groups"] == 4
    assert metrics["frac_reward_zero_std"] == 1.0
    assert same(params(learner.cluster), before)
    assert learner.cluster.steps(Role.ACTOR) == 0
    assert learner.controller_states["kl"]["coefficient"] == 0.1
    assert learner.steps_done == 1  # and the run goes on with other prompts
    assert learner.cursor == 4


def test_a_filtered_group_is_out_of_the_gradient(learner_of):
    """Dropping two groups of four is training on the other two."""

    def some(prompts, completions, index):
        return [float(i % 2) * (n % 2) for n, i in enumerate(index)]

    filtered = learner_of("dr_grpo", function=some, changes={"group_filter": "zero_std"})
    report = filtered.step()
    taught = [group for group in report.collected.groups if group.teaches]
    assert 0 < len(taught) < 4
    plain = learner_of("dr_grpo", function=some)
    plain.batch = BatchConfig(full=len(taught), group_size=2)
    plain.updater.batch = plain.batch
    plain.updater.update(
        Collected(taught, 0, taught, 0, report.collected.failures), 0, {"kl": 0.0}, Spans()
    )
    for a, b in zip(params(filtered.cluster), params(plain.cluster), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_invalid_completions_are_out_of_the_gradient(learner_of):
    """A failed rollout with any tokens and a NaN reward changes nothing."""

    def some(prompts, completions, index):
        return [float("nan") if n == 1 else float(n) for n in range(len(prompts))]

    learner = learner_of("dr_grpo", function=some)
    collected = learner.collector.collect(0, 0)
    start = learner.cluster.state()
    learner.updater.update(collected, 0, {"kl": 0.0}, Spans())
    expected = params(learner.cluster)
    learner.cluster.restore(start)
    failed = collected.groups[0].completions[1]
    failed.tokens[:] = 5
    failed.logp[:] = np.nan
    learner.updater.update(collected, 0, {"kl": 0.0}, Spans())
    assert same(params(learner.cluster), expected)


@pytest.mark.usefixtures("clean_registry")
def test_blocks_that_ask_for_more_of_the_policy_get_it(learner_of):
    @register("whitening", "asking")
    def asking(advantages, mask, *, entropy, sum_pi_squared):
        # exp(-entropy) <= sum of squares <= 1, with equality for a uniform distribution
        return jnp.where(mask > 0, (sum_pi_squared - jnp.exp(-entropy)) * advantages, 0.0)

    learner = learner_of("dr_grpo", changes={"whitening": "asking"})
    experience = learner.updater._experience
    seen = []
    learner.updater._experience = lambda rollouts, *given: (
        seen.append(rollouts) or experience(rollouts, *given)
    )
    learner.step()
    mask = seen[0].mask > 0
    squares, entropy = seen[0].sum_pi_squared[mask], seen[0].entropy[mask]
    assert ((squares > np.exp(-entropy) - 1e-6) & (squares < 1)).all()
    assert (entropy > 0).all()


class TestCritic:
    CHANGES = {**ADAPTIVE, "value_loss": "mse"}  # noqa: RUF012

    def test_it_learns_a_constant_reward(self, learner_of):
        learner = learner_of(
            "ppo", function=lambda prompts, completions: [1.0] * len(prompts), mini=2, steps=12,
            changes=self.CHANGES,
        )  # fmt: skip
        losses = [learner.step().metrics for _ in range(12)]
        assert losses[-1]["value_loss"] < 0.2 * losses[0]["value_loss"]
        assert losses[-1]["value/mean"] == pytest.approx(1.0, abs=0.4)
        assert learner.cluster.steps(Role.CRITIC) == learner.cluster.steps(Role.ACTOR) == 24
        assert {"critic/grad_norm", "critic/lr", "time/critic", "time/values"} <= set(losses[0])

    def test_the_warm_up_trains_the_critic_alone(self, learner_of):
        learner = learner_of("ppo", mini=2, warmup=2, steps=12, changes=self.CHANGES)
        policy, values = params(learner.cluster), params(learner.cluster, Role.CRITIC)
        for _ in range(2):
            metrics = learner.step().metrics
            assert "policy_loss" not in metrics
            assert "value_loss" in metrics
        assert same(params(learner.cluster), policy)
        assert not same(params(learner.cluster, Role.CRITIC), values)
        assert learner.cluster.steps(Role.ACTOR) == 0
        assert learner.controller_states["kl"]["coefficient"] == 0.1
        assert "policy_loss" in learner.step().metrics
        assert not same(params(learner.cluster), policy)


def test_a_loss_that_is_not_finite_changes_no_weights(learner_of):
    learner = learner_of("reinforce", function=lambda prompts, completions: [3e38] * len(prompts))
    before = params(learner.cluster)
    with pytest.raises(
        NonFiniteError, match=r"The loss is (-?inf|nan) \(actor, optimizer step 0\)"
    ):
        learner.step()
    assert same(params(learner.cluster), before)
    assert (learner.steps_done, learner.cursor) == (0, 0)


def test_a_resumed_learner_goes_on_as_the_other_would_have(learner_of):
    one = learner_of("grpo", mini=2, changes=ADAPTIVE)
    one.step()
    arrays, record = one.state()
    after = one.step()
    other = learner_of("grpo", mini=2, changes=ADAPTIVE)
    other.restore(arrays, record)
    resumed = other.step()
    assert [group.example for group in resumed.collected.groups] == [
        group.example for group in after.collected.groups
    ]
    assert same(params(other.cluster), params(one.cluster))
    assert other.state()[1] == one.state()[1]
