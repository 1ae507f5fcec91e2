"""Slots of plug-ins in an algorithm, and metrics that blocks return beside their value."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zootomy import Algorithm, ZootomyError, algorithm, assemble, block, register
from zootomy.learners import Outputs, Rollouts
from zootomy.learners.equations import objective_latex, objective_text
from zootomy.learners.search import search
from zootomy.registry import ContractError, Slot, add_slot, registry

ROLLOUTS = Rollouts(
    rewards=jnp.array([[1.0, 0.0]]),
    valid=jnp.ones((1, 2), bool),
    mask=jnp.array([[1.0, 1.0], [1.0, 0.0]]),
    rollout_logp=jnp.array([[-1.0, -4.0], [-2.0, jnp.nan]]),
)


@pytest.fixture(autouse=True)
def plug_in():
    saved = registry.snapshot()
    add_slot(
        Slot("damping", "How far is an advantage trusted?", ("advantages", "rollout_logp"),
             "[N, T]", after="whitening", logs="[N, T]")
    )  # fmt: skip
    add_slot(Slot("bonus", "What else?", ("rewards", "info"), "[P, G]", after="reward_shaping"))
    add_slot(Slot("floor", "What is the least?", ("loss", "mask"), "[N, T]", after="policy_loss"))
    add_slot(Slot("curriculum", "Which prompts come next?", ("rates",), "weights [P]"))
    add_slot(Slot("tone", "How is it said?", choices=("plain", "kind")))

    @register("damping", "rare", metrics=True)
    def rare(advantages, rollout_logp, *, factor: float = 0.5, length: int | None = None):
        """Rare actions count for less than the others do.

        A' = factor · A
        """
        is_rare = rollout_logp < -3
        return jnp.where(is_rare, factor, 1.0) * advantages, {"rare": is_rare.astype(jnp.float32)}

    @register("bonus", "plus")
    def plus(rewards, info, *, extra: float = 1.0):
        """More for all.

        R' = R + extra
        """
        return rewards + extra

    @register("floor", "at_least")
    def at_least(loss, mask, *, least: float = 0.0):
        """Nothing below.

        max(loss, least)
        """
        return jnp.maximum(loss, least)

    @register("curriculum", "any")
    def anything(rates):
        """All alike."""
        return jnp.ones_like(rates)

    yield
    registry.restore(saved)


def sentence(build, *arguments, **named):
    with pytest.raises(ZootomyError) as error:
        build(*arguments, **named)
    return str(error.value)


class TestInAnAlgorithm:
    def test_it_is_kept_under_its_slot(self):
        mine = algorithm("dr_grpo", damping="rare", **{"damping.factor": 0.25})
        assert mine.value("damping") == block("rare", factor=0.25, length=None)
        assert mine.value("curriculum") is None
        assert ("damping", mine.value("damping")) in mine.specs()
        assert mine.needs == {"groups", "rollout_logp"}
        assert mine.resolve_length(7).value("damping").hyperparameters["length"] == 7
        assert mine.override({"damping": "none"}) == algorithm("dr_grpo")
        assert hash(mine) != hash(algorithm("dr_grpo"))

    def test_it_goes_through_plain_data(self):
        mine = algorithm("dr_grpo", damping="rare", tone="kind")
        data = mine.to_dict()
        assert data["plugins"] == {
            "damping": {"name": "rare", "factor": 0.5, "length": None},
            "tone": "kind",
        }
        assert Algorithm.from_dict(data) == mine
        assert "plugins" not in algorithm("dr_grpo").to_dict()

    def test_a_slot_or_block_that_is_not_there(self):
        assert sentence(Algorithm, plugins={"dampin": "rare"}) == (
            "Unknown plug-in slot 'dampin'. Did you mean 'damping'? "
            "Known: bonus, curriculum, damping, floor, tone. A slot comes with its plug-in: give "
            "--plugin FILE, or call zootomy.load_plugin."
        )
        assert sentence(algorithm, "grpo", damping="rar") == (
            "Unknown damping block 'rar'. Did you mean 'rare'? Known: rare."
        )
        assert sentence(algorithm, "grpo", tone="rude") == (
            "Unknown tone 'rude'. Known: kind, plain."
        )
        assert "Unknown hyperparameter of damping 'rare': 'factr'" in sentence(
            algorithm, "grpo", damping=block("rare", factr=1.0)
        )

    def test_pages_show_it(self):
        plain = algorithm("dr_grpo")
        mine = plain.override({"damping": "rare", "bonus": "plus", "floor": "at_least"})
        text = objective_text(mine)
        assert "R' = plus(group_mean(R))" in text
        assert "A = rare(cumulative_return(r))" in text
        assert "loss = Σ w · [at_least(ppo_clip(ρ, A))]" in text
        assert "rare: A' = 0.5 · A" in text
        assert "rare" in objective_latex(mine)
        assert "\ndamping  (How far is an advantage trusted?)\n  rare: " in mine.describe()
        assert plain.diff(mine).split("\n")[1:5] == [
            "  bonus: none → plus",
            "    plus: More for all.",
            "  damping: none → rare",
            "    rare: Rare actions count for less than the others do.",
        ]
        changed = mine.override({"damping.factor": 0.1})
        assert "  damping.factor: 0.5 → 0.1\n" in mine.diff(changed)
        assert search("rare actions less")[0].name == "damping.rare"

    def test_without_a_place_the_learner_refuses(self, tiny_learner):
        text = sentence(tiny_learner, algorithm("dr_grpo", curriculum="any"))
        assert text == (
            "Slot 'curriculum' stands nowhere in the assembled functions, so this learner would "
            "never ask its block. Add the slot with after='reward_shaping', 'whitening' or "
            "'policy_loss', or ask it in a loop of your own."
        )


class TestInTheAssembly:
    def test_each_place(self):
        mine = algorithm("pico", reward_shaping=(), damping="rare", bonus="plus",
                         floor=block("at_least", least=1.0))  # fmt: skip
        experience, objective = assemble(mine)
        batch, metrics = jax.jit(experience)(ROLLOUTS, {})
        # Rewards 1 + 1 and 0 + 1; the second action is rare, and counts for half.
        np.testing.assert_allclose(batch.advantages, [[2.0, 1.0], [1.0, 0.0]])
        assert metrics["rare"] == (1, 3)
        plain = assemble(mine.override({"floor": "none"})).objective
        outputs = Outputs(logp=jnp.full((2, 2), -0.7))
        # −A logp: 1.4, 0.7 and 0.7 over two completions; none of them below 1.
        np.testing.assert_allclose(plain(outputs, batch, {}).total, 1.4, rtol=1e-6)
        np.testing.assert_allclose(objective(outputs, batch, {}).total, 1.7, rtol=1e-6)

    def test_an_input_that_is_missing(self):
        experience, _ = assemble(algorithm("pico", damping="rare"))
        assert sentence(experience, ROLLOUTS._replace(rollout_logp=None), {}) == (
            "damping 'rare' needs rollout_logp, which is missing; give it with the rollouts or "
            "the outputs."
        )

    def test_a_learner_trains_with_it(self, tiny_learner):
        mine = algorithm("dr_grpo", damping="rare", bonus="plus", floor=block("at_least", least=-9))
        metrics = tiny_learner(mine).step().metrics
        # The engine samples one of twelve tokens: log-probability −2.48, never rare.
        assert metrics["rare"] == 0.0
        assert np.isfinite(metrics["policy_loss"])


@pytest.mark.parametrize(
    ("slot", "message"),
    [
        (
            Slot("x", "?", ("advantages",), after="whitning"),
            "Unknown place for slot 'x': after 'whitning'. Did you mean 'whitening'? Known: "
            "policy_loss, reward_shaping, whitening.",
        ),
        (
            Slot("x", "?", ("mask", "advantages"), after="whitening"),
            "Slot 'x' stands after whitening, so its first input must be 'advantages', got mask, "
            "advantages.",
        ),
        (
            Slot("x", "?", ("rewards", "infos"), after="reward_shaping"),
            "Unknown input of slot 'x': 'infos'. Did you mean 'info'? Known: info.",
        ),
    ],
)
def test_a_slot_that_cannot_stand_there(slot, message):
    assert sentence(add_slot, slot) == message


class TestMetrics:
    def test_of_a_shaping_and_an_advantage_reach_the_log(self, tiny_learner):
        @register("reward_shaping", "noted", metrics=True)
        def noted(rewards, info):
            return rewards, {"mine/shaped": 3 * rewards}

        @register("advantage", "told", metrics=True)
        def told(token_rewards, values, mask):
            a = jnp.where(mask > 0, 2.0, jnp.nan)
            return (jnp.where(mask > 0, a, 0.0), token_rewards), {"mine/a": a}

        @register("regularizer", "seen", metrics=True)
        def seen(logp, ref_logp, entropy, advantages, mask):
            return 0 * logp, {"mine/logp": logp}

        mine = algorithm("pico", reward_shaping="noted", advantage="told",
                         regularizer=block("seen", coef=1.0))  # fmt: skip
        metrics = tiny_learner(mine).step().metrics
        assert metrics["mine/a"] == 2.0
        np.testing.assert_allclose(metrics["mine/shaped"], 3 * metrics["reward/mean"], rtol=1e-5)
        assert metrics["mine/logp"] < 0

    def test_a_policy_loss_has_stats(self):
        with pytest.raises(ContractError) as error:
            register("policy_loss", "x", metrics=True)
        assert str(error.value) == (
            "policy_loss 'x': a block of this slot returns no metrics beside its value; it logs "
            "what it puts into TokenLoss.stats."
        )

    @pytest.mark.parametrize(
        ("returned", "message"),
        [
            (
                lambda x: x,
                "whitening 'x' is registered with metrics=True, so it must return (value, {name: "
                "array}); it returned a ",
            ),
            (
                lambda x: (x, {"m": x[0]}),
                "whitening 'x': the metric 'm' must have shape [2, 2], one value for each place of "
                "the mask, got [2].",
            ),
            (
                lambda x: (x, {"m": x, "twice": x}),
                "whitening 'x': the metric 'twice' is logged already; choose another name.",
            ),
        ],
    )
    def test_what_does_not_fit(self, returned, message):
        @register("whitening", "x", metrics=True)
        def x(advantages, mask):
            return returned(advantages)

        @register("advantage", "y", metrics=True)
        def y(token_rewards, values, mask):
            return (token_rewards, token_rewards), {"twice": mask}

        experience, _ = assemble(algorithm("pico", whitening="x", advantage="y"))
        assert sentence(experience, ROLLOUTS, {}).startswith(message)
