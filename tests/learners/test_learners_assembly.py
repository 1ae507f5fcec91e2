"""The assembled functions by hand: every number has its arithmetic beside it."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zootomy import Algorithm, ZootomyError, algorithm, assemble, block, register
from zootomy.blocks.policy_loss import reinforce
from zootomy.blocks.types import TokenLoss
from zootomy.learners import Outputs


def close(actual, expected):
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=1e-5, atol=1e-6)


# One small program a case compiles faster than its operations one by one.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def run(chosen, rollouts, logp=None, *, kl=None, values=None, entropy=None):
    """Experience, its metrics and the loss of an algorithm on a whole batch."""
    experience, objective = assemble(chosen)
    if logp is None and values is None:
        logp = np.full(rollouts.mask.shape, -1.0)

    def both(rollouts, outputs, coefficients):
        batch, metrics = experience(rollouts, coefficients)
        return batch, metrics, objective(outputs, batch, coefficients)

    given = (None if x is None else np.asarray(x, np.float32) for x in (logp, entropy, values))
    coefficients = {} if kl is None else {"kl": kl}
    return jax.jit(both, compiler_options=QUICK)(rollouts, Outputs(*given), coefficients)


def gradient(chosen, batch, logp, *, kl=None):
    """The gradient of the loss with respect to logp."""
    objective = assemble(chosen).objective

    def total(logp, batch, coefficients):
        return objective(Outputs(logp=logp), batch, coefficients).total

    coefficients = {} if kl is None else {"kl": kl}
    found = jax.jit(jax.grad(total), compiler_options=QUICK)
    return found(np.asarray(logp, np.float32), batch, coefficients)


@pytest.fixture(scope="module")
def grpo_case(rollouts_of):
    # Ratios: row 0 1.5; row 1 0.5 and 1; row 2 1.1; all others 1. Only row 3's first token
    # is away from the reference: d = -1 - (-0.5) = -0.5.
    old = np.full((6, 2), -1.0)
    old[0, 0], old[1, 0], old[2, 0] = -1 - math.log(1.5), -1 + math.log(2), -1 - math.log(1.1)
    ref = np.full((6, 2), -1.0)
    ref[3, 0] = -0.5
    rollouts = rollouts_of([[1, 0, 0], [2, 2, 2]], [1, 2, 1, 2, 1, 1], old_logp=old, ref_logp=ref)
    batch, _, loss = run(algorithm("grpo"), rollouts, kl=0.04)
    return batch, loss


class TestGrpo:
    def test_advantages(self, grpo_case):
        batch, _ = grpo_case
        # mean 1/3; std² = ((2/3)² + 2 (1/3)²) / 2 = 1/3, std = 0.577350
        # (2/3) / 0.577450 = 1.154501, -(1/3) / 0.577450 = -0.577250; equal rewards: exactly 0
        close(batch.advantages[:3], [[1.154501, 0], [-0.577250, -0.577250], [-0.577250, 0]])
        assert (np.asarray(batch.advantages[3:]) == 0).all()

    def test_loss(self, grpo_case):
        _, loss = grpo_case
        # row 0: A > 0, 1.5 is clipped to 1.2:      -1.2 * 1.154501 = -1.385401,  weight 1/6
        # row 1: A < 0, 0.5 is clipped to 0.8:       0.8 * 0.577250 =  0.461800,  weight 1/12
        #        ratio 1:                                            0.577250,  weight 1/12
        # row 2: ratio 1.1:                          1.1 * 0.577250 =  0.634975,  weight 1/6
        # -0.230900 + 0.038483 + 0.048104 + 0.105829 = -0.038484
        close(loss.parts["policy_loss"], -0.038484)
        # k3 = exp(0.5) - 0.5 - 1 = 0.148721, weight 1/12: 0.04 * 0.012393 = 0.000496
        close(loss.parts["kl_loss"], 0.04 * 0.148721 / 12)
        close(loss.total, -0.037988)

    def test_metrics_are_sums_with_their_weights(self, grpo_case):
        _, loss = grpo_case
        # The clip binds on 2 of 8 actions, once at each side.
        close(loss.metrics["clip_ratio"], [2, 8])
        close(loss.metrics["clip_ratio_low"], [1, 8])
        close(loss.metrics["clip_ratio_high"], [1, 8])
        close(loss.metrics["kl"], [0.148721, 8])

    def test_gradient(self, grpo_case):
        batch, _ = grpo_case
        expected = np.zeros((6, 2))
        # clipped tokens: 0; row 1, second: 0.577250 / 12; row 2: 1.1 * 0.577250 / 6
        expected[1, 1], expected[2, 0] = 0.048104, 0.105829
        # row 3: 0.04 * (1 - exp(0.5)) / 12 = -0.002162
        expected[3, 0] = -0.002162
        close(gradient(algorithm("grpo"), batch, np.full((6, 2), -1.0), kl=0.04), expected)

    def test_the_kl_has_a_gradient(self, grpo_case):
        # A KL computed without a gradient would leave beta without effect.
        batch, _ = grpo_case
        logp = np.full((6, 2), -1.0)
        without = gradient(algorithm("grpo"), batch, logp, kl=0.0)
        with_kl = gradient(algorithm("grpo"), batch, logp, kl=1.0)
        close(without[3, 0], 0)
        close(with_kl[3, 0], (1 - math.exp(0.5)) / 12)


def test_rloo_with_the_kl_in_the_returns(rollouts_of):
    """The KL is spread over the tokens' returns and is no part of the baseline."""
    rollouts = rollouts_of(
        [[1, 0]], [2, 1], old_logp=[[-1.0, -1.0], [-1.0, 0]], ref_logp=[[-1.2, -1.3], [-1.0, 0]]
    )
    batch, metrics, _ = run(algorithm("rloo"), rollouts, kl=1.0)
    # leave-one-out: [1, -1]; k1: 0.2 and 0.3 in row 0, none in row 1
    # returns of row 0: 1 - 0.2 - 0.3 = 0.5, 1 - 0.3 = 0.7; row 1: -1
    # (subtracted before the baseline, it would be [0.5, 0.5] and [-0.5]; left out, [1, 1] and -1)
    close(batch.advantages, [[0.5, 0.7], [-1, 0]])
    close(metrics["kl"], [0.5, 3])
    batch, _, _ = run(algorithm("rloo"), rollouts, kl=0.0)
    close(batch.advantages, [[1, 1], [-1, 0]])


def test_rloo_of_eight(rollouts_of):
    rollouts = rollouts_of([[1, 1, 1, 0, 0, 0, 0, 0]], [1] * 8, old_logp=0.0, ref_logp=0.0)
    batch, _, _ = run(algorithm("rloo"), rollouts, kl=0.03)
    # 1 - 2/7 = 0.714286, 0 - 3/7 = -0.428571
    close(batch.advantages[:, 0], [0.714286] * 3 + [-0.428571] * 5)


def test_dr_grpo(rollouts_of):
    rollouts = rollouts_of([[3, 0, 0]], [1, 2, 3], 4)
    batch, _, loss = run(algorithm("dr_grpo").resolve_length(5), rollouts)
    close(batch.advantages[:, 0], [2, -1, -1])  # 3 - 1, 0 - 1; no division by the std
    # -(2 * 1 - 1 * 2 - 1 * 3) / (3 * 5) = 3 / 15
    close(loss.total, 0.2)
    # Nobody filled the length in: the width 4 stands for it, 3 / 12.
    close(run(algorithm("dr_grpo"), rollouts)[2].total, 0.25)


def test_dapo_with_an_overlong_completion(rollouts_of):
    chosen = algorithm("dapo").resolve_length(10)
    batch, _, loss = run(chosen, rollouts_of([[1, 1]], [10, 8]))
    # The last fifth, 2 tokens: length 10 costs 1, length 8 nothing: [0, 1].
    # mean 0.5, std 0.707107: -+ 0.5 / 0.707207 = -+ 0.707007
    close(batch.advantages[:, 0], [-0.707007, 0.707007])
    close(loss.total, -(10 * -0.707007 + 8 * 0.707007) / 18)  # token mean: 0.078556
    text = "overlong_penalty needs length"
    with pytest.raises(ZootomyError, match=text):
        run(algorithm("dapo"), rollouts_of([[1, 1]], [10, 8]))


def test_lengths_are_actions_and_no_span(rollouts_of):
    # Tool tokens between the actions: 9 actions in a span of 12.
    mask = np.array([[1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1], [1] * 11 + [0]])
    chosen = Algorithm(reward_shaping=block("overlong_penalty", length=12, buffer=3))
    batch, _, _ = run(chosen, rollouts_of([[1, 1]], None, mask=mask))
    # 9 - 9 = 0 tokens over: nothing; 11 - 9 = 2 of 3. A span of 12 would cost row 0 its all.
    close(batch.advantages[:, 0], [1, 1 - 2 / 3])


class TestPpo:
    @pytest.fixture
    def rollouts(self, rollouts_of):
        return rollouts_of(
            [[2]], [2], 3, old_logp=-1.0, ref_logp=[[-1.0, -1.5, 9]], values=[[0.5, 1.0, 9]]
        )

    def test_gae_and_losses(self, rollouts):
        chosen = algorithm("ppo", whitening="none", **{"advantage.lam": 0.5})
        batch, _, loss = run(chosen, rollouts, np.full((1, 3), -1.0), kl=0.2)
        # k1 = [0, 0.5]: token rewards [0, 2 - 0.2 * 0.5] = [0, 1.9]
        # delta_1 = 1.9 - 1.0 = 0.9, delta_0 = 0 + 1.0 - 0.5 = 0.5
        # A_1 = 0.9, A_0 = 0.5 + 0.5 * 0.9 = 0.95; returns [1.45, 1.9]
        close(batch.advantages, [[0.95, 0.9, 0]])
        close(batch.returns, [[1.45, 1.9, 0]])
        close(loss.total, -(0.95 + 0.9) / 2)
        _, _, loss = run(chosen, rollouts, values=[[0.8, 1.0, 9]], kl=0.2)
        # token 0: 0.8 is clipped to 0.7: max(0.65², 0.75²) / 2 = 0.28125
        # token 1: 0.9² / 2 = 0.405
        close(loss.total, (0.28125 + 0.405) / 2)
        assert set(loss.parts) == {"value_loss"}
        close(loss.metrics["value/mean"], [1.8, 2])
        close(loss.metrics["value/squared_error"], [0.65**2 + 0.9**2, 2])

    def test_whitening(self, rollouts):
        chosen = algorithm("ppo", **{"advantage.lam": 0.5})
        batch, _, _ = run(chosen, rollouts, np.full((1, 3), -1.0), kl=0.2)
        # 0.925 +- 0.025, ddof 1: std = 0.035355, +-0.707107
        close(batch.advantages, [[0.7070, -0.7070, 0]] / np.array(0.99985))
        close(batch.returns, [[1.45, 1.9, 0]])  # the critic's targets are not whitened

    def test_both_losses_at_once(self, rollouts):
        chosen = algorithm("ppo", whitening="none", **{"advantage.lam": 0.5})
        _, _, loss = run(chosen, rollouts, np.full((1, 3), -1.0), values=[[0.8, 1.0, 9]], kl=0.2)
        close(loss.total, -0.925 + 0.343125)

    def test_a_truncated_row_bootstraps(self, rollouts_of):
        given = {"values": [[0.5, 0.5]], "truncated": np.array([[True]]), "next_values": [0.7]}
        rollouts = rollouts_of([[0]], [2], **given)
        bootstrap = block("gae_bootstrap", gamma=1.0, lam=1.0)
        chosen = Algorithm(advantage=bootstrap, value_loss="mse")
        # delta_1 = 0.7 - 0.5, delta_0 = 0.5 - 0.5
        close(run(chosen, rollouts)[0].advantages, [[0.2, 0.2]])
        # Taken as an end it would be worth 0 behind the cut.
        chosen = Algorithm(advantage=block("gae", lam=1.0), value_loss="mse")
        close(run(chosen, rollouts)[0].advantages, [[-0.5, -0.5]])


class TestGspo:
    @pytest.fixture
    def rollouts(self, rollouts_of):
        return rollouts_of([[1, 0]], [2, 2], old_logp=[[-1.1, -1.3], [-1.1, -1.1]])

    def test_loss(self, rollouts):
        _, _, loss = run(algorithm("gspo"), rollouts)
        # A = +-0.707007. Row 0: mean log ratio 0.2, ratio 1.221403, clipped to 1.0004.
        # Row 1: ratio exp(0.1) = 1.105171, A < 0: not clipped above.
        # (-1.0004 * 0.707007 + 1.105171 * 0.707007) / 2 = 0.037037; a sum of the log ratios
        # would give exp(0.2) in row 1.
        close(loss.total, 0.037037)
        close(loss.metrics["clip_ratio"], [2, 4])

    def test_gradients_of_the_two_forms_agree(self, rollouts):
        batch, _, _ = run(algorithm("gspo"), rollouts)
        logp = np.full((2, 2), -1.0)
        # row 1: each token moves the mean by 1/2 and there are two of weight 1/4:
        # 1.105171 * 0.707007 / 4 a token; row 0 is clipped
        expected = [[0, 0], [0.195341, 0.195341]]
        close(gradient(algorithm("gspo"), batch, logp), expected)
        close(gradient(algorithm("gspo_token"), batch, logp), expected)


def test_pico(rollouts_of):
    logp = np.array([[-1.0, -2.0], [-1.0, 7.0]])
    batch, _, loss = run(algorithm("pico"), rollouts_of([[1, 0]], [2, 1]), logp)
    # A = +-0.5: -(0.5 * -3 - 0.5 * -1) / 2 = 0.5; its gradient is -A / 2
    close(loss.total, 0.5)
    close(gradient(algorithm("pico"), batch, logp), [[-0.25, -0.25], [0.25, 0]])


class TestCorrections:
    @pytest.fixture
    def rollouts(self, rollouts_of):
        # Drift π_old / π_rollout: 1, 3 and 10.
        rollout = [[-1.0, -1 - math.log(3), -1 - math.log(10)]]
        return rollouts_of([[1]], [3], old_logp=-1.0, rollout_logp=rollout)

    @pytest.mark.parametrize(
        ("correction", "weights", "counted", "loss"),
        [
            (block("tis", high=2.0), [1, 2, 2], 3, -5 / 3),
            # Rejected tokens still count below the line, or they do not.
            (block("icepop", denominator="original"), [1, 3, 0], 3, -4 / 3),
            (block("icepop", denominator="kept"), [1, 3, 0], 2, -4 / 2),
            # The geometric mean is 30^(1/3) = 3.1: the sequence is out as a whole.
            (block("seq_mask_tis"), [0, 0, 0], 3, 0),
            (block("seq_mask_tis", denominator="kept"), [0, 0, 0], 0, 0),
            (block("seq_mask_tis", low=1.0, high=4.0), [1, 2, 2], 3, -5 / 3),
        ],
    )
    def test_loss(self, rollouts, correction, weights, counted, loss):
        chosen = Algorithm(reward_shaping="identity", correction=correction)
        batch, metrics, found = run(chosen, rollouts)
        close(batch.correction, [weights])
        assert float(batch.counted.sum()) == counted
        close(found.total, loss)
        close(metrics["correction/weight"], [sum(weights), 3])
        close(metrics["correction/rejected"], [weights.count(0), 3])

    def test_a_rejected_token_is_still_held_to_the_reference(self, rollouts):
        chosen = algorithm("grpo+icepop", reward_shaping="identity")
        _, _, loss = run(chosen, rollouts._replace(ref_logp=np.full((1, 3), -0.5)), kl=1.0)
        close(loss.parts["kl_loss"], 0.148721)

    def test_a_loss_that_is_not_finite_on_a_rejected_token_is_gone(self, rollouts_of):
        # exp(20) * A overflows nothing here, but a rejected token may hold anything.
        rollouts = rollouts_of([[1]], [2], old_logp=[[-1.0, -1.0]], rollout_logp=[[-1.0, -60.0]])
        chosen = Algorithm(
            correction="icepop", policy_loss=block("ppo_clip", clamp=float("inf"), clip_high=1e30)
        )
        batch, _, _ = run(chosen, rollouts)
        logp = np.array([[-1.0, 99.0]])  # ratio exp(100) = inf in float32
        assert np.isfinite(np.asarray(gradient(chosen, batch, logp))[0, 0])
        _, _, loss = run(chosen, rollouts, logp)
        close(loss.total, -0.5)


class TestKlPlacements:
    def test_in_the_advantage(self, rollouts_of):
        chosen = algorithm(
            "reinforce", kl_placement="advantage", kl_estimator="k1", **{"controller.coef": 0.5}
        )
        rollouts = rollouts_of(
            [[1, 2]], [2, 1], old_logp=[[-1.0, -1.0], [-1.0, 5]], ref_logp=[[-1.3, -1.0], [-1.6, 5]]
        )
        batch, metrics, _ = run(chosen, rollouts, kl=0.5)
        # k1 = [0.3, 0], [0.6]; mean 0.3: + 0.5 * (0.3 - kl) = [0, 0.15], [-0.15]
        close(batch.advantages, [[1, 1.15], [1.85, 0]])
        close(metrics["kl"], [0.9, 3])

    @pytest.mark.parametrize("placement", ["reward", "loss", "advantage"])
    def test_what_is_missing_is_named(self, rollouts_of, placement):
        chosen = (
            algorithm(
                "reinforce",
                kl_placement=placement,
                kl_estimator="k1",
                controller=block("constant", coef=1),
            )
            if placement != "loss"
            else algorithm("grpo")
        )
        rollouts = rollouts_of([[1, 2]], [2, 1], old_logp=-1.0)
        with pytest.raises(ZootomyError) as error:
            run(chosen, rollouts, kl=1.0)
        assert str(error.value) == (
            f"kl_placement {placement!r} needs ref_logp, which is missing; give the reference's "
            "log-probabilities."
        )
        with pytest.raises(ZootomyError, match="but coefficients has no 'kl'; give "):
            run(chosen, rollouts._replace(ref_logp=rollouts.old_logp))


class TestRegularizers:
    def test_each_has_its_own_coefficient(self, rollouts_of):
        bonus = [block("entropy", coef=0.5), block("kl", coef=0.1, estimator="k2")]
        chosen = algorithm("grpo", regularizer=bonus)
        rollouts = rollouts_of([[1, 1]], [1, 3], ref_logp=-2.0)
        entropy = np.array([[4.0, 0, 0], [1.0, 2.0, 3.0]])
        _, _, loss = run(chosen, rollouts, kl=0.04, entropy=entropy)
        # Sequence means 4 and 2, mean 3: -0.5 * 3
        close(loss.parts["entropy_regularizer"], -1.5)
        # d = 1, k2 = 0.5. The coefficient is the regularizer's 0.1 and not the controller's 0.04.
        close(loss.parts["kl_regularizer"], 0.05)
        close(loss.parts["kl_loss"], 0.04 * (math.exp(-1) + 1 - 1))
        close(loss.total, -1.5 + 0.05 + 0.04 * math.exp(-1))
        close(loss.metrics["entropy"], [10, 4])

    def test_a_coefficient_can_be_steered(self, rollouts_of):
        chosen = algorithm("pico", regularizer=block("entropy", coef=0.5))
        experience, objective = assemble(chosen)
        batch, _ = experience(rollouts_of([[1, 1]], [1, 1]), {})
        outputs = Outputs(logp=jnp.full((2, 1), -1.0), entropy=jnp.full((2, 1), 2.0))
        close(objective(outputs, batch, {"regularizer.entropy": 0.1}).total, -0.2)
        with pytest.raises(ZootomyError) as error:
            objective(outputs, batch, {"entropy": 0.1})
        assert str(error.value) == (
            "Unknown coefficient 'entropy'. Known: kl, regularizer.entropy."
        )

    def test_without_an_entropy(self, rollouts_of):
        chosen = algorithm("pico", regularizer=block("entropy", coef=0.5))
        with pytest.raises(ZootomyError) as error:
            run(chosen, rollouts_of([[1, 1]], [1, 1]))
        assert str(error.value) == (
            "regularizer entropy needs entropy, which is missing; take it from the policy's logits."
        )


class TestKnownFaults:
    """Small inputs on which a wrong assembly gives another number."""

    def test_parts_of_a_token_mean_add_up(self, rollouts_of):
        # Micro-batches of 3 and 1 tokens, loss 1 a token: 3/4 + 1/4. Divided again by the number
        # of micro-batches 0.5; divided by each one's own tokens 2.
        chosen = Algorithm(reward_shaping="identity")
        (
            experience,
            objective,
        ) = assemble(chosen)
        batch, _ = experience(rollouts_of([[-1, -1]], [3, 1]), {})
        weights = assemble(chosen).weights(batch.counted, batch.group_ids)
        outputs = Outputs(logp=jnp.full((2, 3), -1.0))
        parts = [
            objective(
                *jax.tree.map(lambda x, n=n: x[n : n + 1], (outputs, batch)), {}, weights[n : n + 1]
            )
            for n in (0, 1)
        ]
        close([part.total for part in parts], [0.75, 0.25])
        close(objective(outputs, batch, {}).total, 1.0)

    def test_an_auxiliary_term_is_not_inflated_by_micro_batches(self, rollouts_of):
        chosen = Algorithm(regularizer=block("entropy", coef=-1.0))
        experience, objective = assemble(chosen)
        batch, _ = experience(rollouts_of(np.zeros((32, 1)), [1] * 32), {})
        weights = assemble(chosen).weights(batch.counted, batch.group_ids)
        outputs = Outputs(logp=jnp.full((32, 1), -1.0), entropy=jnp.full((32, 1), 0.0337))
        rows = jax.vmap(
            lambda *x: objective(*jax.tree.map(lambda a: a[None], x[:2]), {}, x[2][None])
        )
        parts = rows(outputs, batch, weights).parts["entropy_regularizer"]
        assert parts.shape == (32,)
        close(parts.sum(), 0.0337)  # not 32 times as much, 1.077

    @pytest.mark.parametrize(
        ("aggregation", "expected"), [("token_mean", 0.5), ("sequence_mean_token_mean", 0.0)]
    )
    def test_one_aggregation_for_all_terms(self, rollouts_of, aggregation, expected):
        # Advantages +1 and -1, lengths 1 and 3: -(1 - 3) / 4, or -(1 - 1) / 2. The KL of 1 a token
        # is 1 under either: no mixture of denominators.
        chosen = algorithm(
            "grpo", reward_shaping="identity", aggregation=aggregation, kl_estimator="k2"
        )
        rollouts = rollouts_of([[1, -1]], [1, 3], ref_logp=-1 - math.sqrt(2))
        _, _, loss = run(chosen, rollouts, kl=1.0)
        close(loss.parts["policy_loss"], expected)
        close(loss.parts["kl_loss"], 1.0)

    def test_an_invalid_row_leaves_the_denominator_too(self, rollouts_of):
        # 30 tokens, 5 of them in a row that was dropped, loss 1: 25/25 and not 25/30.
        chosen = Algorithm(reward_shaping="identity")
        rollouts = rollouts_of([[-1, -1]], [25, 5], valid=[[True, False]])
        close(run(chosen, rollouts)[2].total, 1.0)

    def test_nothing_valid_is_a_loss_of_zero(self, rollouts_of):
        for name in ("grpo", "dapo"):
            chosen = algorithm(name).resolve_length(3)
            kl = 0.04 if name == "grpo" else None
            rollouts = rollouts_of([[1, 0]], [3, 2], valid=[[False, False]], ref_logp=-1.0)
            batch, _, loss = run(chosen, rollouts, kl=kl)
            assert float(loss.total) == 0.0
            found = np.asarray(gradient(chosen, batch, np.full((2, 3), -1.0), kl=kl))
            assert (found == 0).all()

    def test_a_masked_nan_is_inert(self, rollouts_of):
        # 0 * NaN would be NaN.
        rollouts = rollouts_of([[1]], [1], 2, old_logp=[[0, np.nan]])
        batch, _, loss = run(Algorithm(), rollouts, np.zeros((1, 2)))
        close(loss.total, -1.0)
        close(gradient(Algorithm(), batch, np.zeros((1, 2))), [[-1, 0]])

    def test_the_policy_that_sampled_is_used(self, rollouts_of):
        # old -2, now -1: e, clipped to 1.2. A ratio of logp to itself would be 1.
        rollouts = rollouts_of([[1]], [1], old_logp=-2.0)
        close(run(Algorithm(), rollouts)[2].total, -1.2)
        loose = Algorithm(policy_loss=block("ppo_clip", clip_high=9.0))
        close(run(loose, rollouts)[2].total, -math.e)

    def test_the_dual_clip_reaches_the_loss(self, rollouts_of):
        chosen = Algorithm(policy_loss=algorithm("dual_clip_ppo").policy_loss)
        old = -1 - math.log(10)
        close(run(chosen, rollouts_of([[-1]], [1], old_logp=old))[2].total, 3)  # and not 10
        close(run(chosen, rollouts_of([[1]], [1], old_logp=-1.0))[2].total, -1)  # and not -3

    @pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
    @pytest.mark.parametrize(
        ("rewards", "valid"),
        [
            ([[1, 1, 1, 0]], [[1, 1, 1, 0]]),  # a failure taken for a 0 would make a mean of 0.75
            ([[1, 0, 0, 0]], [[1, 0, 0, 0]]),  # a std of one value would be NaN
            ([[1, 1, 1], [0, 0, np.nan]], [[1, 1, 1], [1, 1, 0]]),  # no baseline across prompts
        ],
    )
    def test_no_signal_is_exactly_zero(self, rollouts_of, name, rewards, valid):
        rows = np.size(rewards)
        rollouts = rollouts_of(rewards, [2] * rows, valid=valid, ref_logp=-1.0, old_logp=-1.0)
        kl = None if name == "dr_grpo" else 0.1
        batch, _, _ = run(algorithm(name), rollouts, kl=kl)
        assert (np.asarray(batch.advantages) == 0).all()
        assert (np.asarray(batch.mask) == np.repeat(np.reshape(valid, (-1, 1)), 2, axis=1)).all()

    def test_statistics_are_of_the_valid_members(self, rollouts_of):
        rollouts = rollouts_of([[1, 0, 9, np.nan]], [1] * 4, valid=[[1, 1, 0, 0]])
        batch, _, _ = run(algorithm("dr_grpo"), rollouts)
        close(batch.advantages[:, 0], [0.5, -0.5, 0, 0])
        batch, _, _ = run(algorithm("dapo").resolve_length(9), rollouts)
        close(batch.advantages[:, 0], [0.707007, -0.707007, 0, 0])

    def test_the_reward_stands_on_the_last_action(self, rollouts_of):
        # One place further, it would stand on a masked token and be gone.
        chosen = Algorithm(advantage=block("cumulative_return", gamma=0.5))
        mask = [[1, 1, 1, 1, 0, 0], [1, 0, 1, 0, 0, 0]]
        batch, _, _ = run(chosen, rollouts_of([[1, 4]], None, mask=mask))
        close(batch.advantages, [[0.125, 0.25, 0.5, 1, 0, 0], [2, 0, 4, 0, 0, 0]])

    @pytest.mark.parametrize(("holes", "first"), [("skip", -1.9), ("step", -1.729)])
    def test_the_kl_of_a_masked_token_does_not_leak(self, rollouts_of, holes, first):
        # KL 1 everywhere, gamma 0.9, actions at 0 and 3: -1 - 0.9 counted in actions,
        # -1 - 0.9³ counted in positions; with the holes' KL it would be -3.439.
        chosen = algorithm(
            "reinforce_pp", whitening="none",
            advantage=block("cumulative_return", gamma=0.9, holes=holes),
        )  # fmt: skip
        rollouts = rollouts_of([[0]], None, mask=[[1, 0, 0, 1]], old_logp=0.0, ref_logp=-1.0)
        batch, _, _ = run(chosen, rollouts, kl=1.0)
        close(batch.advantages, [[first, 0, 0, -1]])

    def test_whitening_is_over_the_whole_batch(self, rollouts_of):
        chosen = algorithm("reinforce_pp", whitening=block("batch", ddof=0))
        rollouts = rollouts_of([[1, 3], [5, 7]], [1] * 4, old_logp=-1.0, ref_logp=-1.0)
        batch, _, _ = run(chosen, rollouts, kl=0.0)
        # mean 4, std sqrt(5); shard by shard it would be [-1, 1, -1, 1]
        close(batch.advantages[:, 0], np.array([-3, -1, 1, 3]) / math.sqrt(5))


class TestOwnLoop:
    """Errors in the arrays of someone who calls the functions without a learner."""

    @pytest.mark.parametrize(
        ("name", "value", "text"),
        [
            ("valid", np.ones((1, 4), bool), "valid must be [P, G] = [2, 2], got shape [1, 4]"),
            ("mask", np.ones((1, 3)), "mask must be [N, T] = [4, 3], got shape [1, 3]"),
            ("old_logp", np.ones((4, 1)), "old_logp must be [N, T] = [4, 3], got shape [4, 1]"),
            ("components", np.ones((5, 2)), "components must be [F, P, G] = [5, 2, 2], got"),
            ("baseline", np.ones((2, 1)), "baseline must be [P] = [2], got shape [2, 1]"),
        ],
    )
    def test_shapes_that_would_be_broadcast(self, rollouts_of, name, value, text):
        rollouts = rollouts_of([[1, 0], [2, 2]], [3, 1, 2, 1])._replace(**{name: value})
        with pytest.raises(ZootomyError) as error:
            assemble(algorithm("pico")).experience(rollouts, {})
        assert str(error.value).startswith(f"experience: {text}")

    def test_rewards_by_sequence(self, rollouts_of):
        rollouts = rollouts_of([[1, 0]], [3, 1])
        with pytest.raises(ZootomyError) as error:
            assemble(algorithm("pico")).experience(rollouts._replace(rewards=np.ones(2)), {})
        assert str(error.value) == "experience: rewards must be [P, G], got shape [2]."

    def test_valid_may_be_numbers(self, rollouts_of):
        rollouts = rollouts_of([[1, 0]], [3, 1])._replace(valid=np.array([[2, 0]]))
        batch, _, _ = run(algorithm("pico"), rollouts)
        close(batch.mask, [[1, 1, 1], [0, 0, 0]])

    def test_outputs_without_use(self, rollouts_of):
        experience, objective = assemble(algorithm("pico"))
        batch, _ = experience(rollouts_of([[1, 0]], [1, 1]), {})
        with pytest.raises(ZootomyError) as error:
            objective(Outputs(), batch, {})
        assert str(error.value) == (
            "objective: give outputs with logp or values; there is nothing else."
        )
        with pytest.raises(ZootomyError) as error:
            objective(Outputs(logp=batch.mask, values=batch.mask), batch, {})
        assert str(error.value) == (
            "objective: outputs has values, but value_loss is 'none', so they have no effect. Set "
            "value_loss to 'clipped_mse' or 'mse', or leave the values out."
        )

    def test_what_a_correction_and_a_critic_need(self, rollouts_of):
        rollouts = rollouts_of([[1, 0]], [1, 1], old_logp=-1.0)
        with pytest.raises(ZootomyError) as error:
            run(algorithm("pico+tis"), rollouts)
        assert str(error.value) == (
            "correction 'tis' needs rollout_logp, which is missing; give the log-probabilities "
            "that the engine sampled with."
        )
        with pytest.raises(ZootomyError, match="correction 'tis' needs old_logp, which is missing"):
            run(algorithm("pico+tis"), rollouts._replace(old_logp=None, rollout_logp=rollouts.mask))
        with pytest.raises(ZootomyError, match="gae needs values, which is missing"):
            run(algorithm("ppo"), rollouts._replace(ref_logp=rollouts.mask), kl=0.1)

    @pytest.mark.usefixtures("clean_registry")
    def test_an_input_that_is_not_at_hand(self, rollouts_of):
        @register("whitening", "by_entropy")
        def by_entropy(advantages, mask, *, entropy):
            return advantages

        with pytest.raises(ZootomyError) as error:
            run(algorithm("pico", whitening="by_entropy"), rollouts_of([[1, 0]], [1, 1]))
        assert str(error.value) == (
            "whitening 'by_entropy' asks for the input 'entropy', which is not at hand there; "
            "there are: group_ids, mask."
        )

    @pytest.mark.usefixtures("clean_registry")
    def test_inputs_that_are_at_hand_are_clean(self, rollouts_of):
        seen = {}

        @register("policy_loss", "curious")
        def curious(
            log_ratio,
            advantages,
            logp,
            old_logp,
            mask,
            *,
            group_ids,
            truncated,
            rollout_logp,
            entropy,
        ):
            seen.update(group_ids=group_ids, truncated=truncated, rollout_logp=rollout_logp)
            seen.update(entropy=entropy)
            return reinforce(log_ratio, advantages, logp, old_logp, mask)

        rollouts = rollouts_of(
            [[1, 0]], [2, 1], rollout_logp=[[-1, -2], [-3, np.nan]],
            truncated=np.array([[True, False]]),
        )  # fmt: skip
        experience, objective = assemble(algorithm("pico", policy_loss="curious"))
        outputs = Outputs(jnp.full((2, 2), -1.0), jnp.array([[1, 2], [3, np.nan]]))
        objective(outputs, experience(rollouts, {})[0], {})
        assert seen["group_ids"].tolist() == [0, 0]
        assert seen["truncated"].tolist() == [True, False]
        close(seen["rollout_logp"], [[-1, -2], [-3, 0]])
        close(seen["entropy"], [[1, 2], [3, 0]])

    @pytest.mark.usefixtures("clean_registry")
    def test_what_a_block_of_ones_own_reports_is_a_metric(self, rollouts_of):
        @register("policy_loss", "talkative")
        def talkative(log_ratio, advantages, logp, old_logp, mask):
            loss, stats = reinforce(log_ratio, advantages, logp, old_logp, mask)
            return TokenLoss(loss, {**stats, "surprise": -logp})

        chosen = algorithm("pico", policy_loss="talkative")
        _, _, loss = run(chosen, rollouts_of([[1, 0]], [2, 1]), [[-1, -2], [-3, 9]])
        close(loss.metrics["surprise"], [6, 3])
