"""Every example of docs/extending.md runs: the Python in order, then the command lines."""

import shlex

import make_reference
import pytest
import yaml
from pages import ROOT, fences, run_python
from zootomy.cli import main
from zootomy.registry import registry, slot

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
    assert [title for title, _ in fences(PAGE, "python") if title] == [
        "my_blocks.py",
        "my_slot.py",
    ]
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
        run = "runs/mine_too" if "--config" in arguments else arguments[-1]
        written = yaml.safe_load((folder / run / "run.yaml").read_text())["algorithm"]
        if run == "runs/damped":
            damping = {"name": "rare", "floor": -5.0, "factor": 0.1}
            assert written["plugins"] == {"damping": damping}
        else:
            assert written["policy_loss"] == {"name": "negative_only", "floor": -2.0}


def test_a_slot_of_a_plug_in_has_a_page_in_the_reference(folder):
    page = make_reference.slot_page(slot("damping"))
    assert page.startswith("# damping\n\nHow far is an advantage trusted?\n")
    assert (
        "| [`rare`](#rare) | Actions that were sampled against the odds count for less. |" in page
    )
    assert "- defined in: `my_slot.py`\n" in page
    assert "| `floor` | float | `-5.0` | the log-probability below which" in page


def test_there_are_command_lines():
    assert [line.split()[1] for line in LINES] == [
        "show", "train", "train", "diff", "train", "show", "find",
    ]  # fmt: skip
