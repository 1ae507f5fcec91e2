"""How several processes end: asked to, by a death, or by an error; and go on in other numbers."""

import os
import signal
import time

import pytest
from process_kit import (
    FOUR,
    TINY,
    assert_same_run,
    finish,
    free_port,
    log,
    start,
    start_training,
    wait_for_step,
)
from zootomy.cli import main

pytestmark = pytest.mark.slow
MESH = FOUR[-2:]


def children(*whats, timeout=20):
    """Processes that join and watch, each of which then does what its word says."""
    port = free_port()
    found = []
    for number, what in enumerate(whats):
        given = [str(port), str(len(whats)), str(number), str(timeout), what]
        found.append(start(["watch_child.py", *given]))
    for one in found:
        assert one.stdout is not None
        while "watching" not in (said := one.stdout.readline()):
            assert said or one.poll() is None
    return found


def seconds_to_end(processes):
    began = time.monotonic()
    return finish(processes), time.monotonic() - began


def test_a_killed_process_ends_the_others_with_its_name():
    one, two, three = children("waits", "waits", "waits")
    two.kill()
    (_, first, third), seconds = seconds_to_end([two, one, three])
    assert seconds < 5
    for code, _, error in (first, third):
        assert code == 1
        assert error.startswith("error: Process 1 of 3 (")
        assert error.endswith(
            f", pid {two.pid}) has died, and the run cannot go on without it. Start all processes "
            "again, with --resume.\n"
        )


def test_where_the_first_is_killed_the_others_end_too():
    one, two = children("waits", "waits")
    one.kill()
    (_, (code, _, error)), seconds = seconds_to_end([one, two])
    assert seconds < 15
    assert code != 0
    # Ours, or that of JAX, whose service was in the process that died.
    assert "Process 0 of 2" in error or "coordination service" in error


def test_a_process_that_hangs_counts_as_dead():
    one, two = children("waits", "waits", timeout=3)
    os.kill(two.pid, signal.SIGSTOP)
    code, _, error = finish([one])[0]
    os.kill(two.pid, signal.SIGKILL)
    finish([two])
    assert code == 1
    assert f", pid {two.pid}) has not been heard of for 3 s, and the run cannot" in error


def test_an_error_of_one_process_is_told_by_the_others():
    one, two = children("waits", "fails")
    ((code, _, error), (failed, _, own)), seconds = seconds_to_end([one, two])
    assert seconds < 25
    assert (code, failed) == (1, 1)
    assert error == "error: Process 1 of 2 has ended with ZootomyError: the disk is full.\n"
    assert own.rstrip().endswith("ZootomyError: the disk is full.")


def test_killed_in_the_middle_of_training(tmp_path):
    processes = start_training(tmp_path / "run", "--steps", "500")
    wait_for_step(tmp_path / "run", 1, processes)
    processes[1].kill()
    ((code, _, error), _), seconds = seconds_to_end(processes)
    assert seconds < 60
    assert code == 1
    assert "error: Process 1 of 2 (" in error
    assert f"pid {processes[1].pid}) has died, and the run cannot go on without it." in error


def test_asked_to_stop_all_stop_at_one_step_and_go_on_in_one_process(tmp_path, capsys):
    """SIGTERM comes to process 1; saved by two processes, the run goes on in one, and in two."""
    run, whole = tmp_path / "run", tmp_path / "whole"
    processes = start_training(run, *MESH, "--steps", "500")
    wait_for_step(run, 1, processes)
    processes[1].send_signal(signal.SIGTERM)
    (code, _, error), (other, _, asked) = finish(processes)
    assert (code, other) == (75, 75), error + asked
    step = log(run)[-1]["step"]
    stopped = f"SIGTERM: stopped after step {step}, which is saved in {str(run)!r}. Go on with "
    assert error == f"{stopped}--resume.\n"
    assert asked == f"\nSIGTERM: saving after this step, then leaving\n{stopped}--resume.\n"
    # Two processes x two devices -> one x four.
    words = ["--resume", "--folder", str(run)]
    assert main(["train", *FOUR, *words, "--steps", str(step + 1)]) == 0
    # One x four -> two x two.
    two = start_training(run, *MESH, "--steps", str(step + 2), "--resume")
    assert [code for code, _, _ in finish(two)] == [0, 0]
    words = ["--folder", str(whole), "--steps", str(step + 2)]
    assert main(["train", *FOUR, *words]) == 0
    assert [line["step"] for line in log(run)] == list(range(step + 3))
    # Step 0 is the evaluation before the first step.
    for ours, theirs in zip(log(run)[1:], log(whole)[1:], strict=True):
        for name in ("reward/mean", "grad_norm", "completions/mean_length"):
            assert ours[name] == pytest.approx(theirs[name], rel=5e-3, abs=1e-4)
    capsys.readouterr()


def test_critic_adapters_and_a_batch_ahead_are_the_same_in_two_processes(tmp_path, capsys):
    one, two = tmp_path / "one", tmp_path / "two"
    words = [
        "--algorithm", "ppo+tis", "--kl_placement", "reward", "--lora.rank", "2", "--steps", "3",
        "--max_staleness", "1", "--warmup.steps", "2", "--warmup.batch", "4",
        "--cluster.offload_to_cpu", "critic", "actor.optimizer", "--optimizer.schedule", "linear",
        "--telemetry.trace", "--telemetry.memory", "--checkpoint.every", "1",
    ]  # fmt: skip
    processes = start_training(two, *MESH, *words)
    assert main(["train", *FOUR, "--folder", str(one), *words]) == 0
    results = finish(processes)
    assert [code for code, _, _ in results] == [0, 0], results
    assert_same_run(two, one, but=("memory/",))
    assert sorted(p.name for p in two.iterdir()) == sorted(p.name for p in one.iterdir())
    capsys.readouterr()


def test_processes_at_different_work_are_refused(tmp_path):
    processes = start_training(tmp_path, "--steps", "1", own=(("--seed", "0"), ("--seed", "1")))
    for code, _, error in finish(processes):
        assert code == 2
        assert error == (
            "error: The settings of process 1 are not those of process 0. Start every process "
            "with the same settings, files and versions; only distributed.process may differ.\n"
        )


def test_auto_asks_the_scheduler(tmp_path):
    processes = []
    for number in range(2):
        environment = {
            "SLURM_JOB_ID": str(free_port()) if not number else processes[0][1],
            "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2",
            "SLURM_PROCID": str(number), "SLURM_LOCALID": str(number), "SLURM_STEP_NUM_NODES": "1",
        }  # fmt: skip
        told = ["-m", "zootomy.cli", "train", *TINY, "--steps", "1", "--folder", str(tmp_path)]
        told += ["--distributed.coordinator", "auto"]
        processes.append((start(told, **environment), environment["SLURM_JOB_ID"]))
    assert [code for code, _, _ in finish([one for one, _ in processes])] == [0, 0]
    assert log(tmp_path)[-1]["step"] == 1


def test_auto_without_a_scheduler_is_a_sentence(tmp_path):
    told = ["-m", "zootomy.cli", "train", *TINY, "--folder", str(tmp_path)]
    ((code, _, error),) = finish([start([*told, "--distributed.coordinator", "auto"])])
    assert code == 2
    assert error == (
        "error: distributed.coordinator 'auto' finds no cluster here (coordinator_address should "
        "be defined). Give distributed.coordinator, processes and process.\n"
    )


def test_a_process_that_waits_in_vain_says_for_whom(tmp_path):
    told = ["-m", "zootomy.cli", "train", *TINY, "--folder", str(tmp_path)]
    where = f"127.0.0.1:{free_port()}"
    told += ["--distributed.coordinator", where, "--distributed.processes", "2"]
    told += ["--distributed.process", "1", "--distributed.start_timeout", "2"]
    ((code, _, error),) = finish([start(told)])
    assert code == 2
    assert error == (
        f"error: Process 1 of 2 has waited 2 s for process 0 at {where} (Connection refused). Is "
        "it started, and can it be reached there?\n"
    )
