"""SIGTERM and SIGINT: the step under way is finished and saved, and the exit code says so."""

import os
import signal
import threading

import pytest
import zootomy as z
from rich.console import Console
from run_kit import ALGORITHM, QUIET, assert_same_weights, config, log, train_interrupted
from zootomy.cli import SAVED, main
from zootomy.learners import Learner
from zootomy.learners.run import train
from zootomy.learners.stopping import RunStopped, StopSignals


def test_a_signal_saves_and_the_resumed_run_is_the_uninterrupted_one(
    uninterrupted, tmp_path, monkeypatch
):
    step, number = Learner.step, signal.SIGTERM

    def hears(self, on_batch):
        if self.steps_done == 2:
            os.kill(os.getpid(), number)
        return step(self, on_batch)

    before = signal.getsignal(number)
    monkeypatch.setattr(Learner, "step", hears)
    with pytest.raises(RunStopped) as stopped:
        train(ALGORITHM, config(tmp_path), console=QUIET)
    assert str(stopped.value) == (
        f"SIGTERM: stopped after step 3, which is saved in {str(tmp_path)!r}. Go on with --resume."
    )
    assert (tmp_path / "checkpoints" / "3").is_dir()
    assert signal.getsignal(number) == before
    monkeypatch.setattr(Learner, "step", step)
    train(ALGORITHM, config(tmp_path), resume=True, console=QUIET)
    assert_same_weights(tmp_path, uninterrupted)
    assert log(tmp_path) == log(uninterrupted)


def test_a_second_interrupt_is_not_waited_for():
    with StopSignals() as stop:
        assert stop.heard() is None
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.heard() == "SIGINT"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_in_another_thread_nothing_is_changed():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def within():
        with StopSignals():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=within)
    thread.start()
    thread.join()
    assert seen == [before]


def test_the_exit_code_says_that_the_run_is_saved(monkeypatch, capsys):
    def stops(*_, **__):
        raise RunStopped("SIGTERM", 7, "runs/x")

    monkeypatch.setattr("zootomy.commands.training._run", stops)
    assert main(["train"]) == SAVED == 75
    assert capsys.readouterr().err == (
        "SIGTERM: stopped after step 7, which is saved in 'runs/x'. Go on with --resume.\n"
    )


def test_a_damaged_newest_checkpoint_is_set_aside_and_the_run_ends_the_same(
    uninterrupted, tmp_path
):
    train_interrupted(ALGORITHM, config(tmp_path), after=4)
    (tmp_path / "checkpoints" / "4" / "record" / "metadata").write_text("{}")
    said = Console(record=True, quiet=False, file=open(os.devnull, "w"), width=200)  # noqa: SIM115
    train(ALGORITHM, config(tmp_path), resume=True, console=said)
    text = said.export_text()
    assert (
        "the checkpoint of step 4 is damaged: its file record/metadata has 2 bytes, and was written"
        in text
    )
    assert "it is now 4.damaged, and the run goes on from step 2" in text
    assert (tmp_path / "checkpoints" / "4.damaged").is_dir()
    assert_same_weights(tmp_path, uninterrupted)
    for seal in (tmp_path / "checkpoints").glob("*/checksums.json"):
        seal.unlink()
    with pytest.raises(
        z.ZootomyError, match=r"Every checkpoint in \S+ is damaged: of that of step"
    ):
        train(ALGORITHM, config(tmp_path), resume=True, console=QUIET)
