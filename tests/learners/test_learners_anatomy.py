"""Algorithms as text: the page, the objective with its values, the cost, differences, searching."""

import itertools
from types import SimpleNamespace

import pytest
from zootomy.learners import Algorithm, algorithm, algorithms
from zootomy.learners.anatomy import describe_block, objective_latex, objective_text
from zootomy.learners.costs import cost
from zootomy.learners.equations import formula_with_values, number
from zootomy.learners.search import search, where
from zootomy.learners.update import Updater
from zootomy.registry import block, describe, register, slots

PAIRS = ("preference_loss", "reward_loss")


def corrected(name: str) -> Algorithm:
    return algorithm(f"{name}+tis") if algorithm(name).correction is None else algorithm(name)


class TestThePage:
    @pytest.mark.parametrize("built", [algorithm(name) for name in algorithms()] +
                             [corrected(name) for name in algorithms()],
                             ids=lambda built: built.name)  # fmt: skip
    def test_it_shows_every_block_and_value(self, built):
        page = built.describe()
        assert page.startswith(f"{built.name}: {built.summary}\n")
        assert page.endswith("\n")
        # Without a distance its estimator and controller have no part.
        idle = ("kl_estimator", "controller") if built.kl_placement == "none" else ()
        for place in slots():
            shown = f"\n{place.name}  ({place.question})\n" in page
            assert shown == (place.name not in (*PAIRS, *idle)), place.name
        for slot_name, spec in built.specs():
            if slot_name in idle:
                continue
            info = describe(slot_name, spec.name)
            assert f"  {spec.name}: {info.summary}" in page
            assert info.paper in page
            for line in info.documentation.formula.split("\n"):
                assert line in page
            for key, value in spec.hyperparameters.items():
                assert f"{key} = {value!r}" in page
        for sentence in built.deviations:
            assert f"\ndeviates: {sentence}\n" in page

    def test_an_algorithm_of_ones_own(self):
        assert Algorithm().describe().startswith("custom\nneeds: nothing beyond the policy\n")

    def test_a_block(self):
        page = describe_block("policy_loss", "dppo")
        assert page.startswith("policy_loss.dppo: A trust region in probabilities")
        assert "\nalso called: dppo_tv\npaper: arXiv:2602.04879\n\n  p = π, q = π_old" in page
        assert "\n  delta_low: float = 0.15\n    δ_low, for negative advantages.\n" in page
        assert page.endswith(f"defined in {describe('policy_loss', 'dppo').where}\n")


class TestTheObjective:
    def test_grpo(self):
        assert objective_text(algorithm("grpo", regularizer=block("entropy", coef=0.5))) == (
            "R' = group_norm(R)\n"
            "r_t = R' on the last action, 0 elsewhere\n"
            "A = cumulative_return(r)\n"
            "log ρ = token(π, π_old)\n"
            "loss = Σ w · [ppo_clip(ρ, A) + 0.04 · k3(π, π_ref) + 0.5 · entropy]\n"
            "w = sequence_mean_token_mean(mask)\n"
            "with\n"
            "  group_norm: A_i = (R_i − μ) / (σ + 0.0001),   σ² = Σ_j (R_j − μ)² / (n − 1)\n"
            "  k3: d = logπ − logπ_ref,   kl = exp(−d) + d − 1\n"
            "  cumulative_return: G_t = Σ_{k ≥ t} 1^{k−t} r_k,   k and t counted in actions\n"
            "  token: log r_t = logπ_t − logπ_old,t\n"
            "  ppo_clip: r = exp(clip(log r, ±20)),   "
            "loss = −min(r A, clip(r, 1 − 0.2, 1 + 0.2) A)\n"
            "  sequence_mean_token_mean: w_t = 1 / (N · len_n)\n"
            "  entropy: −H(π(·|s_t))"
        )

    def test_a_coefficient_that_a_controller_steers(self):
        steered = block("entropy", coef=block("entropy_target", target=0.3))
        text = objective_text(algorithm("dr_grpo", regularizer=steered))
        assert "loss = Σ w · [ppo_clip(ρ, A) + β_{entropy} · entropy]\n" in text
        assert "\nβ_{entropy} = entropy_target, after each step\n" in text
        assert "  entropy_target: level ← min(level + 0.005, 1)   where H ≤ 0.3\n" in text

    def test_every_other_place(self):
        text = objective_text(algorithm("ppo", controller="adaptive_kl"))
        assert "r_t = (R' on the last action, 0 elsewhere) − β · k1(π_old, π_ref)_t\n" in text
        assert "A = batch(gae(r))\n" in text
        assert "\nβ = adaptive_kl, after each step\n" in text
        assert "critic loss = Σ w · clipped_mse(V, V_old, G)\n" in text
        text = objective_text(algorithm("grpo", kl_placement="advantage"))
        assert "A = cumulative_return(r) + 0.04 · (mean k3 − k3(π_old, π_ref)_t)\n" in text
        text = objective_text(algorithm("dapo+tis"))
        assert text.startswith("prompts where zero_std(R)\nR' = group_norm(overlong_penalty(R))\n")
        assert "loss = Σ w · [tis(π_old, π_rollout) · ppo_clip(ρ, A)]\n" in text

    def test_what_is_not_used_is_not_defined(self):
        # dr_grpo keeps k3 in its slot, but places no distance anywhere.
        text = objective_text(algorithm("dr_grpo"))
        assert "k3" not in text
        assert "constant: " not in text

    def test_latex(self):
        text = objective_latex(algorithm("grpo"))
        assert text.startswith("\\begin{align*}\n  R' &= \\mathtt{group\\_norm}(R) \\\\\n")
        assert "0.04 \\cdot \\mathtt{k3}(\\pi, \\pi_{\\text{ref}})] \\\\\n" in text
        assert "\\text{token: }& \\log r_{t} = \\log\\pi_{t} - \\log\\pi_{\\text{old},t}" in text
        assert text.endswith("\n\\end{align*}\n")


class TestValuesInFormulas:
    @pytest.mark.parametrize(
        ("slot", "spec", "text"),
        [
            # lo and hi are what the descriptions of clip_low and clip_high begin with.
            ("policy_loss", block("dual_clip", clip_low=0.1, clip_high=0.3, clip_dual=4.0),
             "l = −min(r A, clip(r, 1 − 0.1, 1 + 0.3) A),   loss = min(l, −4 · A) where A < 0, "
             "else l"),
            ("advantage", block("gae", gamma=0.5, lam=0.25),
             "δ_t = r_t + 0.5 · V_{next action} − V_t\n"
             "A_t = δ_t + 0.5 · 0.25 · A_{next action},   return_t = A_t + V_t"),
            # `clip` is the function here, and c the hyperparameter of that name.
            ("value_loss", block("clipped_mse", clip=0.2),
             "½ max((V − G)², (clip(V, V_old − 0.2, V_old + 0.2) − G)²)"),
            # λ is defined by the formula; the hyperparameter lam stands behind alpha=None alone.
            ("advantage", block("vapo_gae", alpha=0.05),
             "A with λ = max(1 − 1/(0.05 · len), 0),   return = V + A with λ = 1"),
            ("policy_loss", block("sapo", tau_positive=2.0),
             "loss = −(4/τ) σ(τ (r − 1)) A,   τ = 2 where A > 0, else 1.05"),
            ("policy_loss", block("ppo_clip", clamp=float("inf")),
             "r = exp(clip(log r, ±∞)),   loss = −min(r A, clip(r, 1 − 0.2, 1 + 0.2) A)"),
            ("reward_shaping", block("clip", low=-1.0, high=1.0),
             "A_i = min(max(R_i, −1), 1)"),
            ("value_loss", block("huber", delta=2.0),
             "f(e) = ½ e² where |e| < 2, else 2 · (|e| − ½ · 2)\n"
             "f(V − G), or with `clip`: max(f(V − G), f(clip(V, V_old ± c) − G))"),
            # None has no number: the name stays.
            ("aggregation", block("constant_length"), "w_t = 1 / (N · length)"),
            ("aggregation", block("constant_length", length=96), "w_t = 1 / (N · 96)"),
            ("preference_loss", block("robust", label_smoothing=0.25, beta=0.5),
             "loss = (−(1 − 0.25) log σ(0.5 · u) + 0.25 · log σ(−0.5 · u)) / (1 − 2 · 0.25)"),
        ],
    )  # fmt: skip
    def test_by_hand(self, slot, spec, text):
        assert formula_with_values(slot, spec) == text

    def test_numbers(self):
        assert [number(x) for x in (1e-6, 0.04, -2.0, 3, float("-inf"))] == [
            "1e-06", "0.04", "−2", "3", "−∞"
        ]  # fmt: skip

    @pytest.mark.usefixtures("clean_registry")
    def test_a_block_without_a_formula(self):
        @register("whitening", "silent")
        def silent(advantages, mask, *, factor: float = 2.0):
            return advantages

        assert formula_with_values("whitening", block("silent")) == ""
        page = algorithm("grpo", whitening="silent").describe()
        assert "A = silent(cumulative_return(r))\n" in page
        assert "  silent: \n      factor = 2.0\n" in page


class TestCost:
    def test_grpo(self):
        found = cost(algorithm("grpo"))
        assert found.passes == {
            "old_logp": "none with one update a step; one of the policy with several",
            "reference": "one of the frozen policy, for kl_placement 'loss'",
        }
        assert found.memory == {"reference": "the policy's weights as they were at the start"}
        assert found.sampling == {}

    def test_ppo(self):
        found = cost(algorithm("ppo"))
        assert list(found.passes) == ["old_logp", "reference", "critic"]
        assert found.passes["old_logp"].endswith("before the update, for kl_placement 'reward'")
        assert list(found.memory) == ["reference", "critic"]

    def test_a_critic_on_the_policys_backbone_is_a_head(self):
        own, shared = cost(algorithm("ppo")), cost(algorithm("ppo"), shared_critic=True)
        assert own.passes["critic"].startswith("one for the values;")
        assert own.memory["critic"] == (
            "a model of the policy's size with gradients and optimizer memory; with critic.shared "
            "a head on the policy's backbone"
        )
        head = "a head on the policy's backbone: one vector, with its optimizer memory"
        assert shared.memory["critic"] == head
        # ppo asks for old_logp anyway, and that pass gives the values too.
        free = "none: the policy's pass before the update gives the values too"
        assert shared.passes["critic"] == free
        alone = algorithm("ppo", kl_placement="none", **{"controller.coef": 0})
        assert cost(alone, shared_critic=True).passes["critic"] == (
            "one of the policy for the values, or none where that for old_logp gives them too"
        )
        whole = algorithm("ppo", kl_estimator="full")
        assert cost(whole, shared_critic=True).passes["critic"] == (
            "one more of the policy, for the values"
        )
        assert f"\n  memory: critic: {head}\n" in algorithm("ppo").describe(shared_critic=True)

    def test_memory_for_a_whole_mini_batch(self):
        assert cost(algorithm("dr_grpo", policy_loss="kl_cov")).memory == {
            "mini-batch": "policy_loss 'kl_cov' must see it whole: no cutting into micro-batches"
        }

    def test_sampling(self):
        assert cost(algorithm("dapo")).sampling == {
            "refill": "other prompts for those that are dropped, 10 rounds at the most"
        }
        page = algorithm("dapo").describe()
        assert "\n  sampling: refill: other prompts for those that are dropped, 10 rounds" in page

    @pytest.mark.parametrize("name", algorithms())
    @pytest.mark.parametrize("updates", [1, 4])
    def test_the_learner_makes_the_passes_that_are_named(self, name, updates):
        for built in (algorithm(name), corrected(name), algorithm(name, correction="bypass")):
            learner = SimpleNamespace(
                algorithm=built,
                batch=SimpleNamespace(updates=updates),
                measures_shift="prompt_values" in built.needs,
            )
            made = Updater.needs_old_logp.fget(learner)
            always = cost(built).passes["old_logp"].startswith("one of the policy")
            assert made == (always or (updates > 1 and not built.bypasses))


class TestDiff:
    def test_of_equals(self):
        for name in algorithms():
            assert algorithm(name).diff(algorithm(name)) == (
                f"{name} → {name}\n  the same blocks with the same values\n"
            )

    def test_of_all_pairs(self):
        built = [algorithm(name) for name in algorithms()]
        compared = [place.name for place in slots() if place.name not in PAIRS]
        for left, right in itertools.product(built, built):
            same = all(left.value(name) == right.value(name) for name in compared)
            assert ("the same blocks" in left.diff(right)) == same

    def test_blocks_and_values(self):
        def line(slot, name):
            return f"    {name}: {describe(slot, name).summary}\n"

        assert algorithm("grpo").diff(algorithm("dr_grpo")) == (
            "grpo → dr_grpo\n"
            "  reward_shaping: group_norm → group_mean\n"
            + line("reward_shaping", "group_norm")
            + line("reward_shaping", "group_mean")
            + "  kl_placement: loss → none\n"
            "    loss: the coefficient times the distance is added to each action's loss.\n"
            "    none: no distance to the reference has a part in it.\n"
            "  controller.coef: 0.04 → 0.0\n"
            "    coef: the coefficient. In constant: The coefficient stays as it is.\n"
            "  aggregation: sequence_mean_token_mean → constant_length\n"
            + line("aggregation", "sequence_mean_token_mean")
            + line("aggregation", "constant_length")
            + "  needs: no reference any more\n"
        )

    def test_lists(self):
        start = algorithm("dapo")
        assert start.diff(start.override({"reward_shaping.ddof": 0})) == (
            "dapo → dapo (changed)\n  reward_shaping.group_norm.ddof: 1 → 0\n"
            "    ddof: 1 for the unbiased variance, 0 for that of the population.\n"
        )
        # Of two lists only what is not in both is explained.
        text = start.diff(start.override({"reward_shaping": ["group_norm"]}))
        assert "    overlong_penalty: " in text
        assert "    group_norm: " not in text

    def test_settings_of_a_slot(self):
        bonus = algorithm("grpo", regularizer=block("entropy", coef=0.1))
        assert bonus.diff(bonus.override({"regularizer.coef": 0.2})) == (
            "grpo → grpo (changed)\n  regularizer.entropy.coef: 0.1 → 0.2\n"
            "    coef: the weight of the term in the loss.\n"
        )
        text = algorithm("grpo").diff(bonus)
        assert "  regularizer: none → entropy\n" in text
        assert text.endswith("  needs: entropy too\n")

    def test_a_symbol_is_explained_by_its_block(self):
        start = algorithm("grpo")
        text = start.diff(start.override({"policy_loss.clip_high": 0.28}))
        assert text == (
            "grpo → grpo (changed)\n  policy_loss.clip_high: 0.2 → 0.28\n"
            "    clip_high: hi; DAPO 0.28. In ppo_clip: "
            f"{describe('policy_loss', 'ppo_clip').summary}\n"
        )


class TestFind:
    def test_every_word_of_a_docstring_counts(self):
        names = [hit.name for hit in search("length bias")]
        # dr_grpo's line speaks of two biases and of the length; constant_length of the length.
        assert names[0] == "dr_grpo"
        assert "aggregation.constant_length" in names[:4]

    @pytest.mark.parametrize(
        ("query", "first"),
        [
            ("clip higher", "dapo"),
            ("low_var_kl", "kl_estimator.k3"),  # an alias
            ("masked_whiten", "whitening.batch"),
            ("optimal token baseline", "advantage.otb"),
            ("2510.01161", "m2po"),  # a paper, of an algorithm and of its loss
        ],
    )
    def test_what_comes_first(self, query, first):
        hits = search(query)
        assert hits[0].name == first

    def test_names_count_more_than_texts_and_stems_match(self):
        hits = search("truncated sampling")
        assert hits == sorted(hits, key=lambda hit: (-hit.matched, -hit.score, hit.name))
        assert [hit.name for hit in search("biases")] == [hit.name for hit in search("bias")]

    def test_where(self):
        hit = next(hit for hit in search("k3") if hit.name == "kl_estimator.k3")
        assert (hit.kind, hit.where) == ("block", describe("kl_estimator", "k3").where)
        for name in algorithms():
            file, line = where(name).rsplit(":", 1)
            with open(file, encoding="utf-8") as text:
                assert f'"{name}"' in text.read().split("\n")[int(line) - 1]

    def test_nothing(self):
        assert search("xyzzy") == []
        assert search(" ,") == []

    @pytest.mark.usefixtures("clean_registry")
    def test_a_block_of_ones_own(self):
        @register("whitening", "frobnicated")
        def frobnicated(advantages, mask):
            """Advantages, frobnicated."""
            return advantages

        assert [hit.name for hit in search("frobnicating")] == ["whitening.frobnicated"]
