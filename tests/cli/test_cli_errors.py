"""What the commands that ask, and `eval`, say of wrong words: a sentence each, as `train` does."""

import pytest
from zootomy.cli import main


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["list", "--jsno"], "Unknown option --jsno. Did you mean --json? `zootomy list --help` "
         "lists its options."),
        (["list", "--json", "ratio", "--xyz=1"], "Unknown option --xyz. `zootomy list --help` "
         "lists its options."),
        (["list", "ratio", "advantage"], "'advantage' is a word too many: write `zootomy list "
         "WHAT`, options as --NAME VALUE, and what belongs together in quotes."),
        (["list", "--json", "--json"], "--json is given twice."),
        (["list", "--json=maybe"], "json must be bool, got 'maybe' (str)."),
        (["show"], "`zootomy show` needs NAME: an algorithm (`grpo`, `grpo+tis`), a config file, "
         "or a block (`policy_loss.ppo_clip`)."),
        (["find", "length", "bias"], "'bias' is a word too many: write `zootomy find WORDS`, "
         "options as --NAME VALUE, and what belongs together in quotes."),
        (["find", "x", "--limit", "many"], "limit must be int, got 'many' (str)."),
        (["find", "x", "--limit"], "--limit needs a value, as in --limit VALUE."),
        (["diff", "grpo"], "`zootomy diff` needs RIGHT: another algorithm or config file."),
        (["eval"], "`zootomy eval` needs FOLDER: a run folder."),
        (["eval", "x", "--evaluation.size", "many"], "evaluation.size must be int or None, got "
         "'many' (str)."),
        (["eval", "x", "--evaluation.sise", "3"], "Unknown option --evaluation.sise. Did you mean "
         "--evaluation.size? `zootomy eval --help` lists its options."),
        (["shw", "grpo"], "Unknown command 'shw'. Did you mean 'show'? Known: bench, diff, eval, "
         "find, list, show, show-cluster, train."),
        (["--json", "list"], "Unknown command '--json'. Known: bench, diff, eval, find, list, "
         "show, show-cluster, train."),
    ],
)  # fmt: skip
def test_wrong_words_are_a_sentence(capsys, words, message):
    assert main(words) == 2
    assert capsys.readouterr() == ("", f"error: {message}\n")


def test_a_switch_takes_no_word_without_a_name(capsys):
    assert main(["list", "--json", "ratio"]) == 0
    assert capsys.readouterr().out.startswith('{\n  "ratio": {')


@pytest.mark.parametrize("words", [[], ["--help"], ["show", "--help"], ["eval", "x", "-h"]])
def test_help_is_printed(capsys, words):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: zootomy")
