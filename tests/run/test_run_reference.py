"""From the command line: distances over the whole vocabulary, and a teacher from a folder."""

import json
import shlex

import pytest
from zootomy.cli import main
from zootomy.models import make_model, save_model

TINY = shlex.split(
    "--task.options.terms 2 --task.train_size 16 --task.eval_size 0 --model.preset tiny "
    "--rollout.max_prompt_tokens 4 --rollout.max_new_tokens 3 --batch.full 2 --batch.group_size 2 "
    "--cluster.micro_rows 4 --optimizer.learning_rate 0.01"
)


def log_of(folder, line, capsys):
    """The metrics of each step of a run with that command line."""
    code = main(["train", *TINY, "--folder", str(folder), *shlex.split(line)])
    assert (code, capsys.readouterr().err) == (0, "")
    entries = [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
    return [entry for entry in entries if entry["step"] > 0]


def test_the_whole_distance_in_the_loss(tmp_path, capsys):
    first, second = log_of(
        tmp_path / "run", "--algorithm grpo --kl_estimator full --steps 2 --reward_shaping none",
        capsys,
    )  # fmt: skip
    # The reference is the policy as it was; then the policy has moved.
    assert first["kl"] == pytest.approx(0.0, abs=1e-6)
    assert second["kl"] > 1e-6


def test_a_teacher_from_a_folder(tmp_path, capsys):
    teacher = make_model("tiny", vocab_size=17, seed=5)
    # Sharper than a fresh model, so that there is something to learn from it.
    head = teacher.embed_tokens.embedding
    head.set_value(20 * head[...])
    save_model(teacher, tmp_path / "teacher")
    line = (
        f"--algorithm pico --reference.path {tmp_path / 'teacher'} --regularizer distillation "
        "--regularizer.coef 1.0 --regularizer.estimator top_k --regularizer.k 4 --steps 3"
    )
    terms = [entry["distillation_regularizer"] for entry in log_of(tmp_path / "run", line, capsys)]
    assert terms[0] > 0.1
    assert terms[-1] < terms[0]


@pytest.mark.parametrize(
    "line, message",
    [
        (
            "--algorithm pico --reference.path nowhere",
            "error: reference.path is 'nowhere', but algorithm 'pico' compares with no reference, "
            "so it has no effect. Add a term that does (a kl_placement, or the regularizer 'kl' or "
            "'distillation'), or leave reference.path empty.\n",
        ),
        (
            "--algorithm grpo --reference.path nowhere",
            "error: reference.path: nowhere/config.json does not exist",
        ),
        (
            "--algorithm grpo --kl_estimator top_k",
            "error: kl_estimator 'top_k' over the teacher's best tokens needs to know how many: "
            "set its k (64 is usual), or take 'full' for all of them.\n",
        ),
    ],
)
def test_a_users_error_is_a_sentence(tmp_path, monkeypatch, capsys, line, message):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *TINY, *shlex.split(line)]) == 2
    assert capsys.readouterr().err.startswith(message)
