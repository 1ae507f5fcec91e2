"""Algorithms as configs: built, compared, written and read, changed by dotted names."""

import json
import pickle
import warnings
from dataclasses import fields

import pytest
import yaml
from zootomy import Algorithm, ZootomyError, algorithm, algorithms, block, register
from zootomy.learners import DoubtfulChoiceWarning
from zootomy.registry import UnknownNameError, describe, names, slot

CORRECTIONS = (None, "tis", "icepop", "seq_mask_tis", "mis")
FIRST_TABLE = (
    "ppo", "reinforce", "reinforce_pp", "reinforce_pp_baseline", "rloo", "grpo", "dr_grpo", "dapo",
    "gspo", "gspo_token", "dual_clip_ppo", "pico",
)  # fmt: skip

THE_REST = (
    "cispo", "sapo", "gmpo", "topr", "dppo", "kimi", "clip_cov", "kl_cov", "fipo", "real", "maxrl",
    "opo", "gpg", "remax", "pass_at_k", "gdpo", "spo", "prpo", "bnpo", "flash_reinforce", "vapo",
    "scale_rl", "prorl_v2", "async_grpo", "luspo", "vespo", "m2po", "ipo_mask",
)  # fmt: skip


def named(name: str, correction: str | None) -> Algorithm:
    return algorithm(name if correction is None else f"{name}+{correction}")


def text_of(function, *arguments, **named_arguments) -> str:
    with pytest.raises(ZootomyError) as error:
        function(*arguments, **named_arguments)
    return str(error.value)


def test_the_table_is_there():
    assert set(algorithms()) == {*FIRST_TABLE, *THE_REST}


@pytest.mark.parametrize("name", algorithms())
def test_an_entry_says_where_it_comes_from(name):
    built = algorithm(name)
    assert built.summary.endswith(".")
    assert len(built.summary) < 90
    assert built.paper or name in ("pico", "prpo")
    assert all(sentence.endswith(".") for sentence in built.deviations)


@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("name", algorithms())
def test_it_builds_without_a_warning_and_survives_yaml_and_json(name, correction):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        built = named(name, correction)
    assert built.name == (name if correction is None else f"{name}+{correction}")
    data = built.to_dict()
    assert Algorithm.from_dict(yaml.safe_load(yaml.safe_dump(data))) == built
    assert Algorithm.from_dict(json.loads(json.dumps(data))) == built
    assert pickle.loads(pickle.dumps(built)) == built
    assert hash(Algorithm.from_dict(data)) == hash(built)


@pytest.mark.parametrize("name", algorithms())
def test_the_dictionary_is_complete(name):
    built = algorithm(name)
    data = built.to_dict()
    # No slot of a plug-in is filled, and an empty entry is left out.
    assert [*data, "plugins"] == [entry.name for entry in fields(Algorithm)]
    for slot_name, spec in built.specs():
        stored = data[slot_name]
        entries = stored if isinstance(stored, list) else [stored]
        entry = next(entry for entry in entries if entry["name"] == spec.name)
        known = {*describe(slot_name, spec.name).hyperparameters, *slot(slot_name).parameters}
        assert set(entry) == {"name", *known}


def test_numbers_that_yaml_reads_as_text():
    # YAML 1.1 wants a dot and a sign in an exponent: "3e-4" is text to yaml.safe_load.
    data = yaml.safe_load("{name: ppo_clip, clip_low: 3e-4, clip_high: 4e-4}")
    assert data["clip_low"] == "3e-4"
    built = algorithm("gspo", policy_loss=data)
    assert built == algorithm("gspo")
    bonus = yaml.safe_load("{name: entropy, coef: 1e-3}")
    assert algorithm("grpo", regularizer=bonus).regularizer == (block("entropy", coef=1e-3),)


def test_a_block_in_three_forms_is_the_same():
    forms = ("k2", block("k2"), {"name": "k2"}, "mse", block("k2", clamp_out=None))
    built = {algorithm("grpo", kl_estimator=form) for form in forms}
    assert len(built) == 1


def test_equal_exactly_if_they_compute_the_same():
    assert algorithm("grpo") == algorithm("grpo", **{"policy_loss.clip_high": 0.2})
    assert algorithm("grpo") != algorithm("grpo", **{"policy_loss.clip_high": 0.21})


@pytest.mark.parametrize(
    ("field", "expected"),
    [("group_filter", None), ("correction", None), ("value_loss", None), ("regularizer", ())],
)
def test_none_as_a_word_empties_a_slot(field, expected):
    assert Algorithm(**{field: "none"}).value(field) == expected
    assert Algorithm(**{field: None}).value(field) == expected


def test_unknown_names():
    assert text_of(algorithm, "gpro").startswith(
        "Unknown algorithm 'gpro'. Did you mean 'prpo' or 'gspo' or 'grpo'? Known: "
    )
    assert text_of(algorithm, "grpo+").startswith("Unknown correction block ''. Known: ")
    assert text_of(algorithm, "grpo+tiss") == (
        "Unknown correction block 'tiss'. Did you mean 'tis'? "
        f"Known: {', '.join(names('correction'))}."
    )
    assert text_of(Algorithm, policy_loss="ppo_clp").startswith(
        "Unknown policy_loss block 'ppo_clp'. Did you mean 'ppo_clip'? Known: "
    )
    assert text_of(Algorithm, kl_placement="los") == (
        "Unknown kl_placement 'los'. Did you mean 'loss'? Known: advantage, loss, none, reward."
    )
    known = ", ".join(sorted(entry.name for entry in fields(Algorithm)))
    assert text_of(Algorithm.from_dict, {"agregation": "token_mean"}) == (
        f"Unknown field of an algorithm: 'agregation'. Did you mean 'aggregation'? Known: {known}."
    )
    assert text_of(algorithm("grpo").value, "polcy_loss").startswith(
        "Unknown slot 'polcy_loss'. Did you mean 'policy_loss'"
    )


def test_what_is_no_block():
    assert text_of(Algorithm, policy_loss=3) == (
        "policy_loss must be a block: a name, block(name, ...) or a mapping with 'name'; got 3."
    )
    assert text_of(Algorithm, policy_loss={"clip_high": 0.3}) == (
        "policy_loss: a block given as a mapping needs a 'name', got {'clip_high': 0.3}."
    )
    assert text_of(Algorithm, reward_shaping=3) == (
        "reward_shaping must be a block: a name, block(name, ...) or a mapping with 'name'; got 3."
    )
    assert text_of(Algorithm, whitening=None) == (
        "whitening must be a block: a name, block(name, ...) or a mapping with 'name'; got None."
    )


def test_a_regularizer_twice():
    twice = (block("entropy", coef=0.1), block("entropy", coef=0.2))
    assert text_of(Algorithm, regularizer=twice) == (
        "regularizer 'entropy' is given twice; add up the coefficients."
    )


def test_a_misspelt_hyperparameter():
    assert text_of(algorithm, "grpo", **{"policy_loss.clip_hihg": 0.28}) == (
        "Unknown hyperparameter of policy_loss 'ppo_clip': 'clip_hihg'. Did you mean 'clip_high'? "
        "Known: clamp, clip_high, clip_low."
    )


class TestOverrides:
    def test_a_value(self):
        built = algorithm("dapo", **{"policy_loss.clip_high": 0.3})
        # Only that value: clip_low stays dapo's 0.2.
        assert built.policy_loss == block("ppo_clip", clip_low=0.2, clip_high=0.3, clamp=20.0)

    def test_a_slot_starts_from_the_blocks_defaults(self):
        assert algorithm("gspo", policy_loss="dual_clip").policy_loss == block(
            "dual_clip", clip_low=0.2, clip_high=0.2, clip_dual=3.0, clamp=20.0
        )

    @pytest.mark.parametrize("same", ["k3", "low_var_kl"])
    def test_naming_the_block_that_is_there_keeps_its_values(self, same):
        start = algorithm("grpo", **{"kl_estimator.clamp": 5.0})
        assert start.override({"kl_estimator": same}) == start

    def test_a_spec_does_not_keep_them(self):
        start = algorithm("grpo", **{"kl_estimator.clamp": 5.0})
        assert start.override({"kl_estimator": block("k3")}) == algorithm("grpo")

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_slots_go_before_values_in_any_order(self, order):
        changes = [("policy_loss", "dual_clip"), ("policy_loss.clip_dual", 5)]
        built = algorithm("grpo", **dict(changes[i] for i in order))
        assert built.policy_loss == block(
            "dual_clip", clip_low=0.2, clip_high=0.2, clip_dual=5.0, clamp=20.0
        )

    def test_an_override_keeps_the_name(self):
        assert algorithm("grpo", aggregation="token_mean").name == "grpo"

    def test_a_value_in_a_list_is_found_by_its_own_name(self):
        built = algorithm("dapo", **{"reward_shaping.factor": 0.5, "reward_shaping.ddof": 0})
        first, second = built.reward_shaping
        assert first.hyperparameters["factor"] == 0.5
        assert second.hyperparameters["ddof"] == 0

    def test_or_by_the_blocks_name_or_alias(self):
        built = algorithm("dapo", **{"reward_shaping.group_norm.eps": 1e-6})
        assert built == algorithm("dapo", **{"reward_shaping.grpo.eps": 1e-6})
        assert built.reward_shaping[1].hyperparameters["eps"] == 1e-6

    def test_a_list_given_and_changed_at_once(self):
        built = algorithm(
            "grpo", reward_shaping=["clip", {"name": "grpo"}], **{"reward_shaping.low": -1}
        )
        assert [spec.name for spec in built.reward_shaping] == ["clip", "group_norm"]
        assert built.reward_shaping[0].hyperparameters["low"] == -1.0

    def test_ambiguity(self):
        start = algorithm("grpo", reward_shaping=("group_mean", "group_norm"))
        assert text_of(start.override, {"reward_shaping.singleton": "reward"}) == (
            "reward_shaping.singleton is ambiguous: write reward_shaping.group_mean.singleton or "
            "reward_shaping.group_norm.singleton."
        )
        built = start.override({"reward_shaping.group_mean.singleton": "reward"})
        assert [s.hyperparameters["singleton"] for s in built.reward_shaping] == ["reward", "zero"]

    def test_a_list_without_that_block_or_value(self):
        assert text_of(algorithm, "dapo", **{"reward_shaping.clip.low": -1}) == (
            "Unknown block in this reward_shaping: 'clip'. Known: group_norm, overlong_penalty."
        )
        assert text_of(algorithm, "grpo", **{"reward_shaping.dof": 0}) == (
            "Unknown hyperparameter of reward_shaping: 'dof'. Did you mean 'ddof'? "
            "Known: ddof, eps, singleton."
        )

    def test_an_empty_slot(self):
        assert text_of(algorithm, "grpo", **{"correction.high": 3.0}) == (
            "correction.high is set, but correction holds no block; choose one first, e.g. "
            f"correction={names('correction')[0]!r}."
        )
        built = algorithm("grpo", correction="tis", **{"correction.high": 3.0})
        assert built.correction.hyperparameters["high"] == 3.0

    def test_a_slot_that_is_a_word(self):
        assert text_of(algorithm, "grpo", **{"kl_placement.coef": 1}) == (
            "kl_placement has no hyperparameters; kl_placement.coef cannot be set."
        )

    def test_an_unknown_slot(self):
        assert text_of(algorithm, "grpo", agregation="token_mean").startswith(
            "Unknown slot 'agregation'. Did you mean 'aggregation'? Known: "
        )
        assert text_of(algorithm, "grpo", **{"agregation.length": 3}).startswith(
            "Unknown slot 'agregation'. Did you mean 'aggregation'? Known: "
        )

    def test_a_setting_of_the_slot(self):
        built = algorithm("dapo", **{"group_filter.strategy": "drop"})
        assert built.group_filter.hyperparameters["strategy"] == "drop"
        assert text_of(algorithm, "dapo", **{"group_filter.strategy": "drp"}) == (
            "group_filter.strategy must be 'drop' or 'refill' or 'replace', got 'drp' (str)."
        )
        built = algorithm("grpo+tis", **{"correction.denominator": "kept"})
        assert built.correction.hyperparameters["denominator"] == "kept"

    def test_a_regularizer_with_its_coefficient(self):
        bonus = block("entropy", coef=0.01)
        assert algorithm("grpo", regularizer=bonus).regularizer == (bonus,)
        built = algorithm("grpo", regularizer=[bonus, block("kl", coef=1)])
        changed = built.override({"regularizer.entropy.coef": "2e-2", "regularizer.kl.coef": 3})
        assert [s.hyperparameters["coef"] for s in changed.regularizer] == [0.02, 3.0]
        assert text_of(built.override, {"regularizer.coef": 1}) == (
            "regularizer.coef is ambiguous: write regularizer.entropy.coef or regularizer.kl.coef."
        )
        assert text_of(algorithm, "grpo", regularizer="entropy") == (
            "regularizer 'entropy' needs 'coef': write block('entropy', coef=...)."
        )

    def test_a_mapping_without_a_name(self):
        changes = {"policy_loss": {"clip_low": 0.1}, "policy_loss.clip_high": 0.3}
        assert text_of(algorithm, "grpo", **changes) == (
            "policy_loss: a block given as a mapping needs a 'name', got {'clip_low': 0.1}."
        )

    @pytest.mark.parametrize("key", ["name.x", "deviations.x", "summary.x"])
    def test_a_field_that_is_no_slot_has_no_values(self, key):
        assert text_of(algorithm, "ppo", **{key: 1}).startswith(f"Unknown slot {key[:-2]!r}")


def test_corrections_and_aliases_by_name():
    built = algorithm("grpo+tis")
    assert built == algorithm("grpo", name="grpo+tis", correction="tis")
    assert built.needs == frozenset({"groups", "reference", "rollout_logp"})
    assert algorithm("reinforce++") == algorithm("reinforce_pp")
    assert algorithm("reinforce++_baseline") == algorithm("reinforce_pp_baseline")
    assert algorithm("drgrpo") == algorithm("dr_grpo")
    assert algorithm("drgrpo+tis").name == "dr_grpo+tis"
    assert algorithm("reinforce+++tis").name == "reinforce_pp+tis"


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("ppo", {"critic", "reference"}),
        ("reinforce", set()),
        ("reinforce_pp", {"reference"}),
        ("rloo", {"groups", "reference"}),
        ("grpo", {"groups", "reference"}),
        ("dr_grpo", {"groups"}),
        ("dapo", {"groups"}),
        ("pico", {"groups"}),
        ("gspo+icepop", {"groups", "rollout_logp"}),
        ("remax", {"greedy_baseline", "reference"}),
        ("spo", {"prompt_values"}),
        ("gdpo", {"components", "groups"}),
        ("dppo", {"groups", "rollout_logp"}),
        ("m2po+tis", {"groups", "rollout_logp", "whole_batch"}),
        ("vapo", {"critic"}),
    ],
)
def test_needs(name, needs):
    assert algorithm(name).needs == needs


def test_needs_of_a_regularizer_and_of_an_aggregation():
    assert algorithm("pico", regularizer=block("kl", coef=0.1)).needs == {"groups", "reference"}
    assert algorithm("reinforce", regularizer=block("entropy", coef=0.1)).needs == {"entropy"}
    assert algorithm("reinforce", aggregation="prompt_mean").needs == {"groups"}


@pytest.mark.usefixtures("clean_registry")
def test_an_extra_input_is_a_need():
    @register("whitening", "by_reference")
    def by_reference(advantages, mask, *, ref_logp, group_ids):
        return advantages

    built = algorithm("reinforce", whitening="by_reference")
    assert built.extra_inputs == {"ref_logp", "group_ids"}
    assert built.needs == {"reference"}
    assert algorithm("reinforce").extra_inputs == frozenset()


def test_the_generation_limit_is_filled_in_where_a_length_is_left_open():
    built = algorithm("dapo", aggregation="constant_length").resolve_length(96)
    assert built.reward_shaping[0].hyperparameters["length"] == 96
    assert built.aggregation.hyperparameters["length"] == 96
    assert built.resolve_length(50) == built
    fixed = algorithm("dr_grpo", **{"aggregation.length": 7}).resolve_length(96)
    assert fixed.aggregation.hyperparameters["length"] == 7
    assert algorithm("grpo").resolve_length(96) == algorithm("grpo")


class TestSteeredCoefficients:
    TARGET = block("entropy_target", target=0.3)

    def test_three_forms_are_the_same(self):
        forms = [
            block("entropy", coef=self.TARGET),
            block("entropy", coef={"name": "adaptive_entropy", "target": 0.3}),
            yaml.safe_load("{name: entropy, coef: {name: entropy_target, target: 0.3}}"),
        ]
        built = {algorithm("pico", regularizer=form) for form in forms}
        assert len(built) == 1
        (one,) = built
        assert one.regularizer[0].hyperparameters["coef"].hyperparameters["delta"] == 0.005
        assert list(one.controllers) == ["kl", "regularizer.entropy"]

    def test_it_survives_yaml_and_json(self):
        built = algorithm("pico", regularizer=block("entropy", coef=self.TARGET))
        data = built.to_dict()
        assert Algorithm.from_dict(yaml.safe_load(yaml.safe_dump(data))) == built
        assert Algorithm.from_dict(json.loads(json.dumps(data))) == built

    def test_its_values_can_be_set(self):
        start = algorithm("pico", regularizer=block("entropy", coef=self.TARGET))
        built = start.override({"regularizer.entropy.coef.target": 0.5})
        assert built.controllers["regularizer.entropy"].hyperparameters["target"] == 0.5
        fixed = start.override({"regularizer.entropy.coef": 0.1})
        assert text_of(fixed.override, {"regularizer.entropy.coef.target": 0.5}) == (
            "regularizer.entropy.coef is 0.1 and no block, so 'target' cannot be set."
        )
        assert text_of(start.override, {"regularizer.entropy.coef.tarket": 0.5}).startswith(
            "Unknown hyperparameter of controller 'entropy_target': 'tarket'."
        )

    def test_what_it_reads_must_be_measured(self):
        bonus = block("entropy", coef="1e-2")
        assert algorithm("pico", regularizer=bonus).controllers.keys() == {"kl"}
        steered = block("entropy", coef=block("adaptive_kl"))
        assert text_of(algorithm, "pico", regularizer=steered) == (
            "regularizer.entropy.coef is steered by 'adaptive_kl', which reads the distance to the "
            "reference, and nothing measures it. Set kl_placement, add the regularizer 'kl', or "
            "take another controller."
        )
        algorithm("grpo", regularizer=steered)
        built = algorithm("pico", regularizer=block("kl", coef=block("adaptive_kl")))
        assert built.needs == {"groups", "reference"}


class TestContradictions:
    def test_a_list_whose_beginning_would_be_lost(self):
        listed = ("overlong_penalty", "gdpo")
        assert text_of(algorithm, "gdpo", reward_shaping=listed) == (
            "reward_shaping 'gdpo' starts from the single reward functions, so what stands before "
            "it ('overlong_penalty') would have no effect. Put 'gdpo' first in the list."
        )
        algorithm("gdpo", reward_shaping=("per_function", "clip"))

    def test_two_baselines(self):
        with pytest.warns(DoubtfulChoiceWarning):
            text = text_of(algorithm, "remax", reward_shaping=("remax", "running_norm"))
        assert text == (
            "reward_shaping 'remax' and 'running_norm' each compare with a baseline of their own, "
            "and there is room for one. Take one of them out."
        )

    def test_gae_without_a_critic(self):
        text = (
            "advantage 'gae' needs a critic, but value_loss is 'none'. Set value_loss to "
            "'clipped_mse' or 'mse', or advantage to 'cumulative_return'."
        )
        assert text_of(algorithm, "grpo", advantage="gae") == text
        assert text_of(algorithm, "ppo", value_loss="none") == text

    def test_k1_as_a_loss(self):
        assert text_of(algorithm, "grpo", kl_estimator="k1") == (
            "kl_estimator 'k1' as a loss: its gradient is that of logp alone, does not depend on "
            "the reference and has mean zero. Set kl_estimator to 'k3' or 'k2', "
            "kl_estimator.gradient to 'k2', or kl_placement to 'reward'."
        )
        algorithm("grpo", kl_estimator=block("k1", gradient="k2"))

    def test_a_sequence_ratio_under_token_mean(self):
        assert text_of(algorithm, "gspo", aggregation="token_mean") == (
            "ratio 'sequence' gives a completion one ratio, but aggregation 'token_mean' counts it "
            "once a token, so long completions would weigh more. Set aggregation to "
            "'sequence_mean_token_mean', or ratio to 'token'."
        )

    def test_a_coefficient_without_a_placement(self):
        assert text_of(algorithm, "grpo", kl_placement="none") == (
            "controller 'constant' sets a coefficient of 0.04, but kl_placement is 'none', so it "
            "has no effect. Set kl_placement to 'loss', 'reward' or 'advantage', or "
            "controller.coef to 0."
        )
        assert text_of(algorithm, "pico", controller="adaptive_kl").startswith(
            "controller 'adaptive_kl' sets a coefficient of 0.001, but kl_placement is 'none'"
        )
        algorithm("grpo", kl_placement="none", **{"controller.coef": 0})

    def test_refills_below_zero(self):
        assert text_of(algorithm, "dapo", **{"group_filter.max_refills": -1}) == (
            "group_filter.max_refills must be 0 or more, got -1."
        )

    @pytest.mark.parametrize(
        ("name", "slot_name", "block_name"),
        [
            ("grpo", "reward_shaping", "group_norm"),
            ("dr_grpo", "reward_shaping", "group_mean"),
            ("rloo", "reward_shaping", "leave_one_out"),
        ],
    )
    def test_a_group_baseline_with_a_group_of_one(self, name, slot_name, block_name):
        assert text_of(algorithm(name).check_run, group_size=1) == (
            f"{slot_name} {block_name!r} compares the completions of one prompt, but group_size is "
            "1: every advantage would be 0. Set group_size to 2 or more, or use an algorithm "
            "without a group baseline (reinforce, reinforce_pp, ppo)."
        )
        algorithm(name).check_run(group_size=2)

    def test_a_group_of_one_is_fine_without_a_group_baseline(self):
        for name in ("reinforce", "reinforce_pp", "ppo"):
            algorithm(name).check_run(group_size=1)
        assert text_of(algorithm("ppo").check_run, group_size=0) == (
            "group_size must be at least 1, got 0."
        )

    def test_a_correction_without_rollout_logp(self):
        assert text_of(algorithm("grpo+tis").check_run, group_size=4, rollout_logp=False) == (
            "correction 'tis' needs the log-probabilities the engine sampled with, and this engine "
            "reports none. Set correction to 'none' or use another engine."
        )
        algorithm("grpo").check_run(group_size=4, rollout_logp=False)


class TestDoubts:
    @pytest.mark.parametrize(
        ("name", "changes", "text"),
        [
            (
                "grpo",
                {"value_loss": "mse"},
                "value_loss trains a critic that advantage",
            ),
            ("grpo", {"controller.coef": 0.0}, "kl_placement is 'loss' with a coefficient of 0"),
            ("grpo", {"kl_estimator": "abs"}, "kl_estimator 'abs' as a loss pushes with the same"),
            ("rloo", {"kl_estimator": "k3"}, "kl_estimator 'k3' in the reward biases"),
            (
                "rloo",
                {"kl_estimator": block("full", direction="forward")},
                "kl_estimator 'full', forward, in the reward biases",
            ),
            (
                "grpo",
                {"kl_estimator": block("top_k", k=8, tail=False)},
                "kl_estimator 'top_k' without its tail as a loss falls when the policy leaves",
            ),
            ("gspo_token", {"aggregation": "token_mean"}, "ratio 'sequence_token' under aggregat"),
            ("grpo", {"ratio": "none"}, "ratio 'none' is always 1, so the clip of policy_loss"),
            ("cispo", {"ratio": "none"}, "ratio 'none' is always 1, and policy_loss 'cispo' works"),
            ("grpo", {"policy_loss": "reinforce"}, "policy_loss 'reinforce' with form 'logp' does"),
            ("gmpo", {"ratio": "sequence"}, "policy_loss 'gmpo' puts the ratios of single tokens"),
            (
                "remax",
                {"reward_shaping": ("clip", "remax")},
                "reward_shaping 'remax' compares with rewards as the functions gave them, but 'cl",
            ),
        ],
    )
    def test_a_doubtful_choice_warns(self, name, changes, text):
        with pytest.warns(DoubtfulChoiceWarning, match=text) as caught:
            algorithm(name, **changes)
        assert len(caught) == 1

    def test_a_coefficient_of_zero_of_any_controller(self):
        changes = {"controller": block("adaptive_kl", coef=0.0)}
        with pytest.warns(DoubtfulChoiceWarning, match="with a coefficient of 0"):
            algorithm("grpo", **changes)

    def test_a_doubt_is_voiced_once(self):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            for _ in range(3):
                doubtful = algorithm("grpo", kl_estimator="abs")
                doubtful.resolve_length(8)
        assert len(caught) == 1


def test_the_unknown_is_refused_before_anything_else():
    with pytest.raises(UnknownNameError):
        Algorithm(advantage="gae", policy_loss="no_such")


def test_a_distance_that_nothing_computes():
    with pytest.warns(DoubtfulChoiceWarning) as caught:
        algorithm("dr_grpo", kl_estimator="k2")
    assert (
        "kl_estimator is set, but has no effect on 'dr_grpo', whose kl_placement is 'none'"
        in str(caught[0].message)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        algorithm("grpo", kl_estimator="k2")
        algorithm("grpo", kl_placement="none", **{"controller.coef": 0.0})
