"""Every example of docs/extending.md runs: the Python in order, then the command lines."""

import shlex

import pytest
import yaml
from pages import ROOT, fences, run_python
from zootomy.cli import main
from zootomy.registry import registry

PAGE = ROOT / "docs" / "extending.md"
TINY = shlex.split(
    "--task.options.terms 2 --task.train_size 16 --task.eval_size 0 --model.preset tiny "
    "--rollout.max_prompt_tokens 4 --rollout.max_new_tokens 3 --batch.full 2 --batch.group_size 2 "
    "--cluster.micro_rows 4 --steps 1"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the files that the page shows, in which its Python has run."""
    saved = registry.snapshot()
    folder = tmp_path_factory.mktemp("extending")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run_python(PAGE)
        yield folder
    registry.restore(saved)


def test_the_page_holds_what_is_run_here(folder):
    assert [title for title, _ in fences(PAGE, "python") if title] == ["my_blocks.py"]
    assert len(fences(PAGE, "python")) > 10
    assert (folder / "mine.yaml").is_file()


LINES = [line for _, text in fences(PAGE, "console") for line in text.splitlines()]


@pytest.mark.parametrize("line", LINES)
def test_command_lines(folder, line, capsys):
    program, *arguments = shlex.split(line)
    assert program == "zootomy"
    training = arguments[0] == "train"
    code = main([*arguments, *(TINY if training else ())])
    assert (code, capsys.readouterr().err) == (0, "")
    if training:
        run = "mine_too" if "--config" in arguments else "mine"
        written = yaml.safe_load((folder / "runs" / run / "run.yaml").read_text())
        assert written["algorithm"]["policy_loss"] == {"name": "negative_only", "floor": -2.0}


def test_there_are_command_lines():
    assert [line.split()[1] for line in LINES] == ["show", "train", "train", "diff"]
