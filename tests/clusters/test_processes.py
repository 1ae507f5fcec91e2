"""Two processes of two devices each train as one process does, and write once."""

import jax
import pytest
import zootomy as z
from process_kit import TINY, assert_same_run, finish, log, start_training
from zootomy.cli import main
from zootomy.clusters import ClusterConfig, DistributedConfig, join_processes
from zootomy.learners.run_config import RunConfig, read_yaml
from zootomy.rollout import check_available


def test_two_processes_train_as_one_and_write_once(tmp_path, capsys):
    one, two = tmp_path / "one", tmp_path / "two"
    # Few operations, as most of the time is compilation.
    words = ["--algorithm", "dr_grpo", "--steps", "2", "--optimizer.name", "sgd"]
    processes = start_training(two, *words, ASKED=str(tmp_path / "asked"))
    assert main(["train", *TINY, "--folder", str(one), *words]) == 0
    (code, first, error), (other_code, second, other_error) = finish(processes)
    assert (code, other_code) == (0, 0), error + other_error
    assert_same_run(two, one)
    # Step 0 is the evaluation before the first step.
    assert [line["step"] for line in log(two)] == [0, 1, 2]
    assert "eval/accuracy" in log(two)[2]
    # Rewards were asked for in process 0 alone, for both.
    assert set((tmp_path / "asked").read_text().split()) == {str(processes[0].pid)}
    assert log(two)[1]["grad_norm"] > 1e-3
    # Process 1 says nothing and writes nothing of its own.
    told = [line.split("  ")[0] for line in first.splitlines() if line.startswith("step ")]
    assert told[-2:] == ["step 1/2", "step 2/2"]
    assert second == ""
    assert sorted(p.name for p in two.iterdir()) == sorted(p.name for p in one.iterdir())
    assert len(list((two / "tensorboard").iterdir())) == 1
    assert [p.name for p in (two / "checkpoints").iterdir()] == ["2"]
    # The run can go on in other processes: they are no part of it.
    assert read_yaml(two / "run.yaml")[1].distributed == DistributedConfig()
    capsys.readouterr()


@pytest.mark.parametrize(
    "given, message",
    [
        (
            {"processes": 2},
            "distributed.processes has no effect without distributed.coordinator; give "
            "distributed.coordinator as HOST:PORT of process 0.",
        ),
        (
            {"coordinator": "auto", "process": 1},
            "distributed.process has no effect beside 'auto'; give distributed.coordinator as "
            "HOST:PORT of process 0.",
        ),
        (
            {"coordinator": "node7", "processes": 2, "process": 0},
            "distributed.coordinator is HOST:PORT of process 0, or 'auto'; got 'node7'.",
        ),
        (
            {"coordinator": "node7:1234", "processes": 2},
            "distributed.coordinator needs distributed.processes, how many there are, and "
            "distributed.process, the number of this one; or 'auto' as coordinator.",
        ),
        (
            {"coordinator": "node7:1234", "processes": 2, "process": 2},
            "distributed.process counts from 0 to 1, since there are 2 processes; got 2.",
        ),
        (
            {"heartbeat_timeout": 0},
            "distributed.heartbeat_timeout must be 1 or more, got 0.",
        ),
    ],
)
def test_numbers_that_do_not_go_together(given, message):
    with pytest.raises(z.ZootomyError) as error:
        DistributedConfig(**given)
    assert str(error.value) == message


def test_after_the_first_array_it_is_too_late():
    jax.devices()
    with pytest.raises(z.ZootomyError) as error:
        join_processes(DistributedConfig(coordinator="127.0.0.1:1", processes=2, process=1))
    assert str(error.value) == (
        "The processes cannot be joined any more: JAX has devices already. Call join_processes "
        "before anything else of JAX."
    )


def test_one_process_has_nothing_to_join():
    join_processes(DistributedConfig())
    assert not jax.distributed.is_initialized()


@pytest.fixture
def as_one_of_two(monkeypatch):
    """What is refused in several processes, is so before the others are asked anything."""
    monkeypatch.setattr(jax, "process_count", lambda: 2)


@pytest.mark.usefixtures("as_one_of_two")
def test_every_role_lives_on_all_devices():
    config = ClusterConfig(mesh="fsdp=8", role_to_mesh={"rollout": "data=4@4"})
    assert config.mesh_of(z.Role.ACTOR).size == 8
    with pytest.raises(z.ZootomyError) as error:
        config.placement(z.Role.ROLLOUT)
    assert str(error.value) == (
        "The rollout's mesh 'data=4@4' takes 4 of the 8 devices of 2 processes; in several "
        "processes every role lives on all devices."
    )


@pytest.mark.usefixtures("as_one_of_two")
def test_auto_takes_all_devices_of_all_processes():
    assert dict(ClusterConfig().mesh_of(z.Role.ACTOR).shape)["fsdp"] == 8


@pytest.mark.usefixtures("as_one_of_two")
@pytest.mark.parametrize("engine", ["vllm", "sglang_jax"])
def test_engines_that_serve_one_process_are_refused(engine):
    with pytest.raises(z.ZootomyError) as error:
        check_available(z.RolloutConfig(engine=engine))
    assert str(error.value) == (
        f"rollout.engine {engine!r} samples for one process, and this run has 2. Set "
        "rollout.engine to 'vanilla', which samples on the devices of all, or train in one process."
    )


def test_a_file_may_say_how_to_join(tmp_path):
    (tmp_path / "run.yaml").write_text("distributed: {coordinator: auto}\n")
    assert read_yaml(tmp_path / "run.yaml")[1] == RunConfig(
        distributed=DistributedConfig(coordinator="auto")
    )
