"""How the words of a command line become settings."""

import pytest
import zootomy as z
from zootomy.commands.starting import read_start
from zootomy.learners.run_config import RunConfig
from zootomy.learners.settings import from_plain, setting_kinds, to_plain, with_settings


def settings(*words):
    return read_start(list(words))[1]


def test_a_value_has_the_type_of_its_setting():
    run = settings(
        "--folder", "12", "--optimizer.learning-rate", "1e-4", "--checkpoint.keep", "None",
        "--rollout.top_k=null", "--reward_model.weight=-3", "--reward_model.path", "x",
        "--rollout.temperature", "1",
    )  # fmt: skip
    assert run.folder == "12"
    assert run.optimizer.learning_rate == 1e-4
    assert (run.checkpoint.keep, run.rollout.top_k) == (None, None)
    assert run.reward_model.weight == -3.0
    assert (run.rollout.temperature, type(run.rollout.temperature)) == (1.0, float)


def test_numbers_with_an_exponent_in_open_mappings():
    """YAML 1.1 takes `1e-1`, without a point, for text."""
    run = settings("--optimizer.options.b1", "9e-1", "--task.options.terms", "3")
    assert run.optimizer.options == {"b1": 0.9}
    assert run.task.options == {"terms": 3}


@pytest.mark.parametrize(
    ("words", "remat", "resume"),
    [
        (["--model.remat", "--resume"], True, True),
        (["--model.no-remat"], False, None),
        (["--model.no_remat"], False, None),
        (["--model.remat", "False"], False, None),
        (["--model.remat=true", "--no-resume"], True, False),
    ],
)
def test_switches(words, remat, resume):
    _, run, own = read_start(words, {"resume": bool})
    assert run.model.remat is remat
    assert own.get("resume") is resume


@pytest.mark.parametrize(
    "words",
    [
        ["--task.rewards", "math_verify", "length", "--task.reward_weights", "1", "0.5"],
        ["--task.rewards=math_verify,length", "--task.reward_weights", "1,0.5"],
    ],
)
def test_tuples_take_several_words_or_commas(words):
    run = settings(*words, "--steps", "3")
    assert run.task.rewards == ("math_verify", "length")
    assert run.task.reward_weights == (1.0, 0.5)
    assert run.steps == 3


def test_numbers_are_decimal():
    """YAML 1.1 reads 010 as 8."""
    assert settings("--steps", "010").steps == 10
    assert settings("--task.options.terms", "03").task.options == {"terms": 3}


def test_no_entries():
    assert settings("--cluster.offload_to_cpu", "none").cluster.offload_to_cpu == ()
    assert settings("--cluster.offload_to_cpu=").cluster.offload_to_cpu == ()


def test_settings_of_entries_have_types_too():
    words = ["--reward_models.judge.path", "3", "--reward_models.judge.normalize"]
    judge = settings(*words, "--reward_models.judge.clip", "none").reward_models["judge"]
    assert (judge.path, judge.normalize, judge.clip) == ("3", True, None)
    off = settings(*words[:2], "--reward_models.judge.no-normalize").reward_models["judge"]
    assert off.normalize is False


def test_settings_are_checked_as_they_end_up():
    """Mini-batches of 3 do not fit the 32 prompts on the way there: only the end counts."""
    run = settings("--batch.mini", "3", "--batch.full", "6")
    assert (run.batch.mini, run.batch.full) == (3, 6)
    run = with_settings(run, {"batch.full": 8, "batch.mini": 4, "task.options.terms": 2})
    assert (run.batch.mini, run.batch.full, run.task.options) == (4, 8, {"terms": 2})


def test_every_setting_has_a_kind_and_goes_round():
    kinds = setting_kinds(RunConfig)
    assert {"steps", "rollout.vllm.dtype", "cluster.role_to_mesh"} <= kinds.keys()
    assert from_plain(RunConfig, to_plain(RunConfig())) == RunConfig()


def test_a_command_without_options_of_its_own_knows_none():
    with pytest.raises(z.ZootomyError, match="Unknown option --resume"):
        read_start(["--resume"])
