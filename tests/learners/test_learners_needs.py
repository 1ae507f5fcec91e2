"""What blocks ask for beyond the usual arrives, is kept over a resume, or is refused in time."""

import jax
import numpy as np
import pytest
from tiny_run import WIDTH, share
from zootomy import ZootomyError, algorithm, block
from zootomy.clusters import Checkpoints, Sequences
from zootomy.clusters.programs import accumulate
from zootomy.learners import BatchConfig
from zootomy.learners.memory import Memory
from zootomy.tasks import RewardFunction


def seen_rollouts(learner):
    """The rollouts that the assembled function is given, as they come."""
    seen, experience = [], learner.updater._experience

    def spy(rollouts, *given):
        seen.append(rollouts)
        return experience(rollouts, *given)

    learner.updater._experience = spy
    return seen


def refused(build, *arguments, **named):
    with pytest.raises(ZootomyError) as error:
        build(*arguments, **named)
    return str(error.value)


def test_the_weights_of_reward_functions_arrive(tiny_learner):
    rewards = (
        RewardFunction("share", share, weight=0.5),
        RewardFunction("short", lambda prompts, completions: [1.0] * len(prompts), weight=2.0),
    )
    learner = tiny_learner("gdpo", rewards=rewards)
    seen = seen_rollouts(learner)
    learner.step()
    np.testing.assert_array_equal(seen[0].component_weights, [0.5, 2.0])
    total = (seen[0].components * np.array([0.5, 2.0])[:, None, None]).sum(0)
    np.testing.assert_allclose(seen[0].rewards, total, rtol=1e-6)


def test_truncated_rows_get_the_value_behind_the_cut(tiny_learner):
    bootstrap = {"advantage": "gae_bootstrap", "regularizer": "none"}
    learner = tiny_learner("vapo", changes=bootstrap)
    seen = seen_rollouts(learner)
    collected = learner.step().collected
    groups = [(group.prompt, one) for group in collected.groups for one in group.completions]
    fresh = tiny_learner("vapo", changes=bootstrap)
    # The value of the state after the last token is that before one more.
    longer = Sequences(
        [prompt for prompt, _ in groups], [[*one.tokens, 0] for _, one in groups], WIDTH + 1
    )
    values = fresh.cluster.values(longer)
    behind = [values[n, len(one.tokens)] for n, (_, one) in enumerate(groups)]
    np.testing.assert_allclose(seen[0].next_values, behind, rtol=1e-5, atol=1e-6)
    assert seen[0].truncated.any()
    assert not seen[0].truncated.all()


def test_a_greedy_completion_a_prompt_is_the_baseline(tiny_learner):
    def most(prompts, completions):
        # The greedy rollout of the first prompt fails.
        rewards = share(prompts, completions)
        return [None if len(prompts) == 4 and n == 0 else r for n, r in enumerate(rewards)]

    learner = tiny_learner("remax", function=most)
    seen = seen_rollouts(learner)
    report = learner.step()
    (usual, sampling, seed), (greedy, plain, again) = learner.cluster.engine.calls
    assert [r.prompt for r in usual] == [r.prompt for r in greedy]
    assert ({r.n for r in usual}, {r.n for r in greedy}) == ({2}, {1})
    assert (sampling.temperature, plain.temperature, seed) == (1.0, 0.0, again)
    texts = learner.cluster.engine.generate(greedy, plain, seed)
    decode = learner.task.tokenizer.decode
    expected = share(None, [decode(group[0].tokens.tolist()) for group in texts])
    np.testing.assert_allclose(seen[0].baseline[1:], expected[1:], rtol=1e-6)
    assert np.isnan(seen[0].baseline[0])
    # They were sampled like any others, and count in the speed.
    groups = report.collected.groups
    assert [group.greedy_tokens for group in groups] == [len(one.tokens) for (one,) in texts]
    sampled = [one for group in groups for one in group.completions] + [one for (one,) in texts]
    tokens = sum(len(one.tokens) for one in sampled)
    metrics = report.metrics
    np.testing.assert_allclose(metrics["tokens_per_second"] * metrics["time/step"], tokens)
    assert np.isfinite(report.metrics["policy_loss"])


class TestMemory:
    NORM = {"reward_shaping": ("running_norm",)}  # noqa: RUF012

    def test_moments_hold_the_batch_itself(self, tiny_learner):
        learner = tiny_learner("reinforce", changes=self.NORM)
        seen = seen_rollouts(learner)
        rewards = []
        for _ in range(2):
            rewards.append(learner.step().collected.groups)
            flat = np.concatenate([g.rewards for groups in rewards for g in groups])
            np.testing.assert_allclose(seen[-1].baseline, np.full(4, flat.mean()), rtol=1e-5)
            np.testing.assert_allclose(seen[-1].scale, np.full(4, flat.std(ddof=1)), rtol=1e-5)

    def test_values_are_from_before_the_batch(self, tiny_learner):
        learner = tiny_learner("spo")
        seen = seen_rollouts(learner)
        report = learner.step()
        np.testing.assert_array_equal(seen[0].baseline, [0.5] * 4)
        # 8 pieces of evidence: 4 + 4; nothing has moved yet, so 0.96 of it stays.
        values = np.asarray(learner.memory.values.tracker.value)
        for group in report.collected.groups:
            won = 0.96 * 4 + group.rewards.sum()
            assert values[group.example] == pytest.approx(won / (0.96 * 8 + 2), rel=1e-5)
        shift = report.metrics["policy_shift"]
        assert shift > 0
        assert float(learner.memory.values.travelled) == pytest.approx(shift)
        # Six prompts, four a step: the second step sees two for the first time, and then two again.
        again = learner.step().collected.groups
        assert seen[1].baseline[:2].tolist() == [0.5, 0.5]
        assert seen[1].baseline[2] == pytest.approx(float(values[again[2].example]))
        seen_at = np.asarray(learner.memory.values.seen_at)
        assert seen_at[again[0].example] == pytest.approx(shift)

    def test_a_prompt_twice_in_a_batch(self, tiny_learner):
        learner = tiny_learner("spo", full=8)
        groups = learner.step().collected.groups
        assert len({group.example for group in groups}) == 6
        (twice, *_) = [g.example for n, g in enumerate(groups)
                       if g.example in [o.example for o in groups[:n]]]  # fmt: skip
        first, second = (group.rewards.sum() for group in groups if group.example == twice)
        # Not moved in between, but 0.96 is kept each time.
        alpha = 0.96 * (0.96 * 4 + first) + second
        tracker = learner.memory.values.tracker
        assert float(tracker.alpha[twice]) == pytest.approx(alpha, rel=1e-5)

    def test_rewards_that_are_no_probabilities(self, tiny_learner):
        learner = tiny_learner("spo", function=lambda prompts, completions: [2.0] * len(prompts))
        text = refused(learner.step)
        assert text.startswith(
            "reward_shaping 'spo' counts successes and failures, so rewards must lie in 0..1; "
        )

    @pytest.mark.parametrize("name", ["spo", "running", "steered"])
    def test_a_resumed_learner_goes_on_bit_for_bit(self, tiny_learner, tmp_path, name):
        def make():
            if name == "steered":
                coef = block("entropy_target", target=9.0, delta=0.25)
                return tiny_learner("pico", changes={"regularizer": block("entropy", coef=coef)})
            changes = self.NORM if name == "running" else None
            return tiny_learner("spo" if name == "spo" else "reinforce", changes=changes)

        one = make()
        one.step()
        with Checkpoints(tmp_path) as checkpoints:
            checkpoints.save(1, *one.state())
            one.step()
            other = make()
            other.restore(*checkpoints.restore(other.state()[0]))
        other.step()
        for a, b in zip(jax.tree.leaves(one.state()[0]), jax.tree.leaves(other.state()[0]),
                        strict=True):  # fmt: skip
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
        assert one.state()[1] == other.state()[1]

    def test_nothing_is_remembered_where_nothing_asks(self, tiny_learner):
        assert Memory.start(algorithm("grpo"), 6) == Memory(None, None)
        assert "memory" not in tiny_learner("pico").state()[0]


def test_a_steered_coefficient_moves_and_compiles_nothing(tiny_learner):
    coef = block("entropy_target", target=9.0, delta=0.25)
    learner = tiny_learner("pico", changes={"regularizer": block("entropy", coef=coef)})
    first = learner.step().metrics
    assert first["entropy_regularizer_coefficient"] == 0.0
    assert first["entropy_regularizer"] == 0.0
    programs = accumulate.jitted._cache_size()
    second = learner.step().metrics
    # Entropy is below 9 nats: one step of delta.
    assert second["entropy_regularizer_coefficient"] == 0.25
    # A mean over sequences of sums over tokens.
    expected = -0.25 * second["entropy"] * second["completions/mean_length"]
    assert second["entropy_regularizer"] == pytest.approx(expected, rel=1e-5)
    assert learner.controller_states["regularizer.entropy"]["coefficient"] == 0.5
    # Programs of learners that are gone may leave the cache meanwhile.
    assert accumulate.jitted._cache_size() <= programs


def test_a_regularizer_follows_the_distance_it_measures(tiny_learner):
    coef = block("kl_window", coef=0.1, low=1e-9, high=1e-8)
    learner = tiny_learner("pico", changes={"regularizer": block("kl", coef=coef)})
    assert learner.step().metrics["kl"] == pytest.approx(0.0, abs=1e-6)
    learner.step()
    assert learner.step().metrics["kl_regularizer_coefficient"] > 0.09


class TestWholeBatches:
    def test_sizes_that_might_cut_a_mini_batch(self, tiny_learner):
        # 4 prompts x 2 completions, one a row.
        assert refused(tiny_learner, "m2po", rows=6) == (
            "policy_loss 'm2po' must see a whole mini-batch at once, and a mini-batch of 4 prompts "
            "× 2 completions of up to 7 tokens can take 8 rows, but a micro-batch has 6. Set "
            "cluster.micro_rows to 8 or batch.mini to 2."
        )
        assert refused(tiny_learner, "real", rows=1, full=1).endswith(
            "Set cluster.micro_rows to 2."
        )
        # Rows of 8 tokens hold one completion of up to 7, whatever the packing.
        assert "can take 8 rows" in refused(tiny_learner, "clip_cov", rows=6, per_row=4)
        tiny_learner("m2po", rows=4, mini=2)
        # Before the update nothing is cut.
        tiny_learner("pico", rows=1, changes={"correction": "normalized"})

    def test_a_mini_batch_that_would_be_cut_after_all(self, tiny_learner):
        learner = tiny_learner("kl_cov", mini=2, rows=4)
        learner.updater.batch = BatchConfig(full=4, group_size=2)
        before = learner.cluster.steps("actor")
        assert refused(learner.step) == (
            "policy_loss 'kl_cov' must see a whole mini-batch at once, but its 8 sequences take 2 "
            "micro-batches of 4 rows. Set cluster.micro_rows to 8, or batch.mini to fewer prompts."
        )
        assert learner.cluster.steps("actor") == before

    def test_it_trains_when_it_fits(self, tiny_learner):
        metrics = tiny_learner("real").step().metrics
        assert metrics["grad_norm"] > 0


def test_bypass_takes_the_engines_word_and_saves_a_pass(tiny_learner):
    learner = tiny_learner("dppo", epochs=2)
    asked = []
    log_probs = learner.cluster.log_probs
    learner.cluster.log_probs = lambda *a, **k: (asked.append(a), log_probs(*a, **k))[1]
    seen = seen_rollouts(learner)
    metrics = learner.step().metrics
    assert asked == []
    assert seen[0].old_logp is None
    # The engine's tokens are uniform, the policy is not: the ratio is away from 1 from the start.
    assert abs(metrics["approx_kl"]) > 0.01
    assert metrics["rollout_logp_gap"] > 0.01


class TestRefusals:
    def test_a_single_turn_is_one(self, tiny_learner):
        learner = tiny_learner("reinforce", changes={"advantage": "turn_level"})
        seen = seen_rollouts(learner)
        learner.step()
        assert (seen[0].turn_ids == 0).all()

    @pytest.mark.parametrize(
        ("changes", "text"),
        [
            ({"policy_loss.clip_low": -1}, "ppo_clip: clip_low must be at least 0, got -1.0."),
            (
                {"group_filter": block("score_range", low=1.0, high=0.0)},
                "score_range keeps nothing: low + margin = 1.0 is not below high - margin = 0.0.",
            ),
            (
                {"correction": block("tis", low=3.0)},
                "tis: low must be below high, got 3.0 and 2.0.",
            ),
            ({"advantage": "otb_corrected", "ratio": "token"}, None),
        ],
    )
    def test_values_out_of_range_before_anything_is_sampled(self, tiny_learner, changes, text):
        if text is None:
            tiny_learner("dr_grpo", changes=changes)
        else:
            assert refused(tiny_learner, "dr_grpo", changes=changes) == text
