"""The command line: what it prints, and that a user's error is a sentence and no traceback."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
import transformers
import zootomy as z
from zootomy.cli import main

TINY = [
    "--task.options.terms", "2", "--task.train_size", "16", "--task.eval_size", "4",
    "--model.preset", "tiny", "--rollout.max_prompt_tokens", "4", "--rollout.max_new_tokens", "3",
    "--batch.full", "2", "--batch.group_size", "2", "--cluster.micro_rows", "4", "--steps", "1",
    "--evaluation.size", "4",
]  # fmt: skip


def without(flag: str) -> list[str]:
    """The small run with one of its settings left open."""
    at = TINY.index(flag)
    return TINY[:at] + TINY[at + 2 :]


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_list_names_every_slot_and_its_blocks(capsys):
    code, out, _ = run(capsys, "list", "--json")
    table = json.loads(out)
    assert code == 0
    assert table["algorithms"].keys() == set(z.algorithms())
    assert sorted(table["policy_loss"]) == z.names("policy_loss")
    assert list(table["kl_placement"]) == ["advantage", "loss", "none", "reward"]


def test_list_one_slot_as_text(capsys):
    _, out, _ = run(capsys, "list", "ratio")
    assert out.startswith("ratio  Per token, per sequence, or none?\n")
    assert "  sequence_token  The sequence's ratio" in out


@pytest.mark.parametrize("name", z.algorithms())
def test_show_every_algorithm(capsys, name):
    code, out, _ = run(capsys, "show", name)
    assert code == 0
    assert out.startswith(f"{name}: ")
    assert "loss = Σ w · [" in out
    _, out, _ = run(capsys, "show", name, "--json")
    assert json.loads(out)["policy_loss"]["name"] == z.algorithm(name).policy_loss.name


def test_show_a_file_whose_critic_is_a_head(capsys, tmp_path):
    (tmp_path / "run.yaml").write_text("algorithm: ppo\ncritic: {shared: true}\n")
    _, out, _ = run(capsys, "show", str(tmp_path / "run.yaml"))
    assert "memory: critic: a head on the policy's backbone: one vector" in out
    _, out, _ = run(capsys, "show", str(tmp_path / "run.yaml"), "--json")
    assert json.loads(out)["cost"]["memory"]["critic"].startswith("a head on the policy's")


def test_show_a_block(capsys):
    code, out, _ = run(capsys, "show", "policy_loss.ppo_clip", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["hyperparameters"]["clip_low"] == {
        "type": "float", "default": 0.2, "meaning": "lo."
    }  # fmt: skip
    assert found["formula"].startswith("r = exp(clip(log r, ±clamp))")
    assert found["latex"].startswith("r = \\exp(\\operatorname{clip}(\\log r")
    _, out, _ = run(capsys, "show", "policy_loss.ppo_clip", "--latex")
    assert out == found["latex"] + "\n"
    _, out, _ = run(capsys, "show", "policy_loss.ppo_clip")
    assert out.startswith(f"policy_loss.ppo_clip: {found['summary']}\n")


def test_show_the_objective_alone(capsys):
    _, out, _ = run(capsys, "show", "grpo", "--latex")
    assert out.startswith("\\begin{align*}\n")
    _, text, _ = run(capsys, "show", "grpo", "--json")
    shown = json.loads(text)
    assert out == shown["latex"] + "\n"
    assert shown["objective"][0] == "R' = group_norm(R)"
    assert list(shown["cost"]) == ["passes", "memory", "sampling"]


def test_find(capsys):
    code, out, _ = run(capsys, "find", "length bias", "--limit", "2")
    assert code == 0
    lines = out.split("\n")
    assert lines[0].startswith("dr_grpo  GRPO without its two biases")
    assert lines[1].startswith("    /")
    assert lines[4].endswith(" more; see --limit.")
    _, out, _ = run(capsys, "find", "masked_whiten", "--json")
    assert json.loads(out)[0]["name"] == "whitening.batch"
    _, out, _ = run(capsys, "find", "xyzzy")
    assert out == "Nothing that is registered speaks of 'xyzzy'.\n"


def test_a_reader_that_stops_is_no_error():
    line = f"{sys.executable} -m zootomy.cli list | head -1"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_diff_names_only_what_differs(capsys):
    _, out, _ = run(capsys, "diff", "grpo", "dr_grpo", "--json")
    assert set(json.loads(out)) == {
        "name", "summary", "paper", "reward_shaping", "kl_placement", "controller", "aggregation",
    }  # fmt: skip
    _, out, _ = run(capsys, "diff", "grpo", "grpo")
    assert "the same blocks with the same values" in out


def test_train_takes_algorithm_slots_and_hyperparameters_by_dotted_names(capsys, tmp_path):
    code, out, err = run(
        capsys, "train", "--algorithm", "grpo", "--policy_loss.clip_high", "0.28",
        "--aggregation=token_mean", "--reward_shaping", "clip,group_norm", "--kl-placement", "none",
        "--controller.coef", "0", "--folder", str(tmp_path / "run"), *TINY,
    )  # fmt: skip
    assert code == 0, err
    assert "held-out accuracy:" in out
    algorithm, config = z.learners.run_config.read_yaml(tmp_path / "run" / "run.yaml")
    assert algorithm.policy_loss.hyperparameters["clip_high"] == 0.28
    assert algorithm.aggregation.name == "token_mean"
    assert [spec.name for spec in algorithm.reward_shaping] == ["clip", "group_norm"]
    assert algorithm.kl_placement == "none"
    assert config.task.options == {"terms": 2}
    assert config.steps == 1

    code, out, err = run(capsys, "eval", str(tmp_path / "run"), "--json")
    assert code == 0, err
    assert 0 <= json.loads(out)["eval/accuracy"] <= 1


def test_a_config_file_is_the_starting_point_and_the_command_line_goes_before_it(capsys, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(
        "algorithm: {base: dapo, policy_loss.clip_high: 0.3}\nsteps: 7\nseed: 4\nbatch: {full: 0}\n"
    )
    code, _, err = run(capsys, "train", "--config", str(file))
    assert (code, err) == (2, "error: batch.full must be a whole number of 1 or more, got 0.\n")
    file.write_text("algorithm: {base: dapo, policy_loss.clip_high: 0.3}\nsteps: 7\nseed: 4\n")
    code, _, err = run(
        capsys, "train", "--config", str(file), "--folder", str(tmp_path / "run"), *TINY,
        "--group_filter.when_short", "train", "--group_filter.max_refills", "0",
    )  # fmt: skip
    assert code == 0, err
    algorithm, config = z.learners.run_config.read_yaml(tmp_path / "run" / "run.yaml")
    assert (algorithm.name, config.steps, config.seed) == ("dapo", 1, 4)
    assert algorithm.policy_loss.hyperparameters["clip_high"] == 0.3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["show", "gpro"],
            "error: Unknown algorithm 'gpro'. Did you mean ",
        ),
        (
            ["train", "--policy_loss", "ppo_clp"],
            "error: Unknown policy_loss block 'ppo_clp'. Did you mean 'ppo_clip'?",
        ),
        (
            ["train", "--policy_loss.clip_hih", "0.3"],
            "error: Unknown hyperparameter of policy_loss 'ppo_clip': 'clip_hih'. "
            "Did you mean 'clip_high'?",
        ),
        (
            ["train", "--policy_loss.clip_high", "high"],
            "error: policy_loss.clip_high must be float, got 'high' (str).",
        ),
        (["train", "--policy_loss.clip_high"], "error: --policy_loss.clip_high needs a value"),
        (
            ["train", "--advantage", "gae"],
            "error: advantage 'gae' needs a critic, but value_loss is 'none'.",
        ),
        (
            ["train", *without("--batch.group_size"), "--batch.group_size", "1"],
            "error: reward_shaping 'group_norm' compares the completions of one prompt, but "
            "group_size is 1",
        ),
        (
            ["train", *TINY, "--task.name", "reasoning_gym:lgc"],
            "error: Unknown reasoning-gym family 'lgc'. Did you mean",
        ),
        (
            ["train", "--algorithm", "grpo", "--algorithm", "rloo"],
            "error: --algorithm is given 2 times: grpo, rloo; give one.",
        ),
        (
            ["train", "--polcy_loss", "gspo"],
            "error: Unknown option --polcy_loss. Did you mean --policy_loss? `zootomy train "
            "--help` lists the settings, `zootomy list` the slots.\n",
        ),
        (
            ["train", "--polcy-loss.clip_high=0.3"],
            "error: Unknown option --polcy-loss.clip_high. Did you mean --policy_loss.clip_high?",
        ),
        (
            ["train", "--rollout.max_new_tokns", "7"],
            "error: Unknown option --rollout.max_new_tokns. Did you mean --rollout.max_new_tokens?",
        ),
        (["train", "--xyzzy"], "error: Unknown option --xyzzy. `zootomy train --help` lists"),
        (
            ["train", "--rolout.max_new_tokens", "7"],
            "error: Unknown option --rolout.max_new_tokens. Did you mean --rollout.max_new_tokens?",
        ),
        (["find", "length", "--limit", "3", "--limit=4"], "error: --limit is given twice.\n"),
        (["train", "--seed", "1", "--seed=2"], "error: --seed is given twice.\n"),
        (
            ["train", "--model.remat", "--model.no-remat"],
            "error: --model.no-remat is given twice.\n",
        ),
        (
            ["train", "--task.options", "3"],
            "error: --task.options is set entry by entry, as in --task.options.NAME VALUE; got 3.",
        ),
        (
            ["train", "--config", "."],
            "error: '.' is a folder and no config file; name the .yaml file in it, as in "
            "'run.yaml'.\n",
        ),
        (
            ["train", "--algorithm", "grpo+bypass+tis"],
            "error: 'grpo+bypass+tis' names two corrections, 'bypass' and 'tis', and an algorithm "
            "has one: write grpo+bypass or grpo+tis.\n",
        ),
        (
            ["train", "--batch.full", "6", "--batch.mini", "4"],
            "error: batch.mini must divide batch.full: 6 prompts cannot be cut into mini-batches "
            "of 4. Use 2 or 3.\n",
        ),
        (["train", "--steps", "1,2"], "error: steps must be int, got '1,2' (str).\n"),
        (["train", "--steps", "many"], "error: steps must be int, got 'many' (str).\n"),
        (["train", "--steps", ""], "error: --steps needs a value, as in --steps VALUE.\n"),
        (["train", "--config="], "error: --config needs a value, as in --config VALUE.\n"),
        (
            ["train", "--critic.shared", "yes"],
            "error: critic.shared must be bool, got 'yes' (str).\n",
        ),
        (["train", "--critic.coef", "inf", "--critic.shared"], "error: critic.coef must be a num"),
        (
            ["train", "--reward_models.judge", "runs/x"],
            "error: --reward_models is set as --reward_models.NAME.SETTING, of path, weight, "
            "normalize, clip.\n",
        ),
        (
            ["train", "--reward_models.judge-2.path", "x"],
            "error: reward_models.judge-2: a reward model's name has letters, digits and _ only",
        ),
        (
            ["show-cluster", "--mesh", "fsdp=2", "--cluster.mesh", "fsdp=4"],
            "error: --cluster.mesh is given twice.\n",
        ),
        (["show-cluster", "--devices", "0"], "error: --devices must be 1 or more, got 0.\n"),
        (["train", "--steps"], "error: --steps needs a value, as in --steps VALUE.\n"),
        (
            ["train", "--model.dtype", "float16"],
            "error: model.dtype must be 'float32' or 'bfloat16', got 'float16' (str).\n",
        ),
        (
            ["train", "more"],
            "error: 'more' belongs to no option; options are written --NAME VALUE.",
        ),
        (
            ["train", "--lora.alpha", "8"],
            "error: lora.alpha has no effect while lora.rank is 0; set lora.rank (8 is usual).\n",
        ),
        (
            ["train", "--reward_model.weight", "2"],
            "error: reward_model.weight, normalize and clip have no effect without a reward model; "
            "set reward_model.path.\n",
        ),
        (
            ["train", "--steps", "3", "--telemetry.profile_from", "4", "--telemetry.profile_to=5"],
            "error: telemetry.profile_from is 4, but the run has 3 steps; nothing would be "
            "recorded.\n",
        ),
        (
            ["train", "--optimizer.options.b1", "high"],
            "error: optimizer: The option 'b1' of the optimizer 'adamw' must be a number such as "
            "0.9, got the text 'high'.\n",
        ),
        (["find", "length", "--limit", "-3"], "error: --limit must be 1 or more, got -3."),
        (["train", "--config", "no.yaml"], "error: There is no config file 'no.yaml'."),
        (
            ["train", "--plugin", "no.py"],
            "error: The plug-in 'no.py' does not exist; give a path to a .py file.",
        ),
        (
            ["train", *without("--model.preset"), "--model.preset", "huge"],
            "error: Unknown model preset 'huge'. Known: medium, small, tiny.",
        ),
        (
            ["train", *TINY, "--model.path", "nowhere"],
            "error: model.path: nowhere/config.json does not exist; a model folder holds",
        ),
        (
            ["train", *TINY, "--reward_model.path", "nowhere"],
            "error: reward_model.path: nowhere/config.json does not exist",
        ),
        (
            ["train", "--optimizer.learning_rate", "-1"],
            "error: optimizer.learning_rate must be a number >= 0, got -1.0.\n",
        ),
        (
            ["train", "--algorithm", "ppo", "--critic_optimizer.name", "adamx"],
            "error: critic_optimizer: Unknown optimizer 'adamx'. Did you mean 'adamax' or 'adam'",
        ),
        (
            ["train", "--optimizer.warmup_steps", "100"],
            "error: optimizer.warmup_steps=100 is not shorter than the run of 100 optimizer steps; "
            "take fewer warm-up steps or more steps.\n",
        ),
        (
            ["train", "--cluster.micro_rows", "2", "--cluster.micro_tokens", "3"],
            "error: cluster.micro_rows=2 and micro_tokens=3 both say how large a micro-batch is; "
            "give one of them.\n",
        ),
        (
            ["train", "--cluster.row_length", "9"],
            "error: cluster.row_length=9 is shorter than the longest sequence of the run, 768 "
            "tokens; raise row_length, or lower the prompt or completion limit.\n",
        ),
        (
            ["train", "--rollout.max_slots", "0"],
            "error: rollout.max_slots is 0; expected an integer >= 1\n",
        ),
        (
            ["train", "--rollout.vllm.sleep", "5"],
            "error: rollout.vllm.sleep is 5; expected 0, 1 or 2\n",
        ),
        (
            ["train", "--critic_optimizer.learning_rate", "1e-4"],
            "error: critic_optimizer.learning_rate has no effect: algorithm 'grpo' has no critic. "
            "Leave it out, or set value_loss to 'clipped_mse'.\n",
        ),
        (
            ["train", *TINY, "--reward_models.answer.path", "nowhere"],
            "error: A reward function is named 'answer', and so is a reward model; their metrics "
            "would be one. Give one of them another name.\n",
        ),
        (
            ["show-cluster", *TINY, "--reward_models.answer.path", "nowhere"],
            "error: A reward function is named 'answer', and so is a reward model; their metrics ",
        ),
        (
            ["show-cluster", "--max_staleness", "2"],
            "error: max_staleness must be 0 (each batch is sampled with the newest weights) or 1 "
            "(while the step before learns), got 2.\n",
        ),
        (
            ["show-cluster", "--rollout.temperature", "0"],
            "error: rollout.temperature is 0: all completions of a prompt would be the same.",
        ),
        (
            ["show-cluster", "--rollout.transfer.backend", "ray"],
            "error: rollout.transfer.backend is 'ray', and the engine runs in the trainer's ",
        ),
        (
            ["show-cluster", "--batch.group_size", "1"],
            "error: reward_shaping 'group_norm' compares the completions of one prompt, but ",
        ),
        (
            ["show-cluster", "--algorithm", "dapo", "--reference.refresh_steps", "3"],
            "error: reference.refresh_steps is 3, but algorithm 'dapo' has no reference. Set it ",
        ),
        (
            ["show-cluster", "--warmup.batch", "8"],
            "error: warmup.batch has no effect: warmup.steps is 0. Leave it out, or set "
            "warmup.steps.\n",
        ),
        (
            ["train", *TINY, "--critic_warmup", "2"],
            "error: critic_warmup is 2, but algorithm 'grpo' has no critic: nothing would learn",
        ),
        (
            ["train", *TINY, "--folder", "/dev/null/run"],
            "error: The run folder '/dev/null/run' cannot be written to: Not a directory.",
        ),
        (["eval", "nowhere"], "error: 'nowhere' is no run folder: it has no run.yaml."),
        (
            ["train", *without("--rollout.max_prompt_tokens"), "--rollout.max_prompt_tokens", "3"],
            "error: held-out prompt 0 has 4 tokens; max_prompt_tokens is 3.",
        ),
    ],
)
def test_a_users_error_is_a_sentence(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert err.startswith(message), err
    assert "Traceback" not in err


def test_a_slot_outside_of_the_algorithm(capsys, tmp_path):
    (tmp_path / "run.yaml").write_text("policy_loss: gspo\nsteps: 3\n")
    code, _, err = run(capsys, "train", "--config", str(tmp_path / "run.yaml"))
    assert code == 2
    assert err == (
        "error: policy_loss is a slot of the algorithm and stands under it in a file, as in "
        "algorithm: {base: grpo, policy_loss: ...}.\n"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task:\n  options:\n", "error: task.options must be a mapping, got None (NoneType).\n"),
        ("algorithm: {base: 3}\n", "error: algorithm.base must be a name, got 3.\n"),
        ("steps: 5\nsteps: 6\n", "error: 'run.yaml' is not YAML: 'steps' stands twice in one "),
        ("model.path: x\n", "error: Settings are nested in a file: model: {path: x}.\n"),
    ],
)
def test_a_config_file_with_a_mistake(capsys, tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(text)
    code, _, err = run(capsys, "train", "--config", "run.yaml")
    assert (code, err[: len(message)]) == (2, message)


def test_a_config_file_of_bytes(capsys, tmp_path):
    (tmp_path / "run.yaml").write_bytes(b"\xff\xfe\x00")
    code, _, err = run(capsys, "train", "--config", str(tmp_path / "run.yaml"))
    assert code == 2
    assert "run.yaml' is not YAML: " in err


def test_a_best_metric_that_is_not_measured(capsys, tmp_path):
    code, _, err = run(
        capsys, "train", *TINY, "--folder", str(tmp_path / "run"),
        "--checkpoint.best_metric", "eval/acuracy",
    )  # fmt: skip
    assert code == 2
    assert "Unknown metric in checkpoint.best_metric: 'eval/acuracy'. Did you mean " in err
    assert "'eval/accuracy'" in err


def test_a_refused_start_leaves_the_folder_free(capsys, tmp_path):
    folder = ["--folder", str(tmp_path / "run")]
    code, _, err = run(capsys, "train", *TINY, *folder, "--rollout.temperature", "0")
    assert (code, err[:31]) == (2, "error: rollout.temperature is 0")
    assert run(capsys, "train", *TINY, *folder)[0] == 0
    code, _, err = run(capsys, "train", *TINY, *folder)
    assert (code, "holds a run already" in err) == (2, True)
    # It can be examined otherwise than it was.
    sampled = ["--evaluation.samples", "2", "--evaluation.temperature", "1"]
    code, _, err = run(capsys, "eval", str(tmp_path / "run"), *sampled)
    assert (code, err) == (0, "")
    code, _, err = run(capsys, "eval", str(tmp_path / "run"), "--evaluation.size", "0")
    assert (code, err.startswith("error: ")) == (2, True), err


def test_the_help_names_the_plug_in(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert "--plugin" in capsys.readouterr().out


def test_an_empty_data_set(capsys, tmp_path):
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "</s>": 1}, "a"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "empty.jsonl").write_text("")
    code, _, err = run(
        capsys, "train", "--task.name", str(tmp_path / "empty.jsonl"), "--task.rewards",
        "math_verify", "--task.tokenizer", str(tmp_path / "tokenizer"),
        "--folder", str(tmp_path / "run"),
    )  # fmt: skip
    assert code == 2
    assert err.startswith("error: ")
    assert "empty.jsonl" in err
    assert "Traceback" not in err


def test_a_reward_function_that_raises(capsys, tmp_path):
    file = tmp_path / "rewards.py"
    file.write_text("def broken(prompts, completions):\n    raise RuntimeError('no judge')\n")
    code, _, err = run(
        capsys, "train", *TINY, "--task.rewards", f"{file}:broken",
        "--folder", str(tmp_path / "run"),
    )  # fmt: skip
    assert code == 2
    assert "none of the 4 completions has a reward: reward function 'broken' raised" in err
    assert "RuntimeError: no judge" in err


def test_a_plug_in_is_used_by_name(capsys, tmp_path, clean_registry):
    file = tmp_path / "my_blocks.py"
    file.write_text(
        "import zootomy as z\n"
        "@z.register('reward_shaping', 'doubled')\n"
        "def doubled(rewards, info, *, factor: float = 2.0):\n"
        "    '''The reward, doubled.'''\n"
        "    return factor * rewards\n"
    )
    code, _, err = run(
        capsys, "train", "--plugin", str(file), "--reward_shaping", "doubled,group_mean",
        "--reward_shaping.factor", "3", "--folder", str(Path(tmp_path) / "run"), *TINY,
    )  # fmt: skip
    assert code == 0, err
    algorithm, _ = z.learners.run_config.read_yaml(tmp_path / "run" / "run.yaml")
    assert algorithm.reward_shaping[0] == z.block("doubled", factor=3.0)
