"""Meshes on the command line, and the picture of a cluster."""

import json
from pathlib import Path

import pytest
import zootomy as z
from zootomy.cli import main
from zootomy.commands.starting import read_start
from zootomy.learners.run_config import RunConfig, read_yaml
from zootomy.learners.seating import draw_seats, seat_roles
from zootomy.learners.settings import with_settings
from zootomy.learners.sizes import explain_sizes

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_command_draws_and_explains(capsys):
    assert main(["show-cluster", "--mesh", "auto", "--devices", "4"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("device      0  1  2  3\nactor      ██ ██ ██ ██  fsdp=4  float32")
    assert "\n\nstep: 32 prompts × 8 = 256 completions a step;" in out
    assert main(["show-cluster", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [seat["role"] for seat in found["roles"]] == ["actor", "reference", "rollout"]
    assert len(found["sizes"]) == 5


def test_settings_of_a_run_go_along(capsys):
    assert main(["show-cluster", "--batch.full", "6", "--batch.group_size=4", "--json"]) == 0
    sizes = json.loads(capsys.readouterr().out)["sizes"]
    assert sizes[0].startswith("step: 6 prompts × 4 = 24 completions a step;")


def test_a_mesh_that_does_not_fit_is_a_sentence(capsys):
    assert main(["show-cluster", "--mesh", "fsdp=8", "--devices", "4"]) == 2
    assert capsys.readouterr().err == (
        "error: The actor's mesh 'fsdp=8' takes the devices 0..7, but there are 4.\n"
    )


def test_the_picture_says_which_process_has_which_device(capsys, tmp_path):
    words = ["show-cluster", "--mesh", "fsdp=4", "--processes", "2"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert out.startswith("device      0  1  2  3\nprocess     0  0  1  1\nactor      ██ ██ ██ ██")
    given = "{coordinator: 'node0:1234', processes: 4, process: 1}"
    (tmp_path / "run.yaml").write_text(f"cluster: {{mesh: data=4}}\ndistributed: {given}\n")
    assert main(["show-cluster", "--config", str(tmp_path / "run.yaml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["processes"] == 4


@pytest.mark.parametrize(
    "words, message",
    [
        (
            ["--mesh", "fsdp=4", "--processes", "3"],
            "4 devices do not deal evenly over 3 processes; each process has the same number.",
        ),
        (
            ["--config", str(EXAMPLES / "disaggregated.yaml"), "--processes", "2"],
            "The actor's mesh 'fsdp=4' takes 4 of the 8 devices of 2 processes; in several "
            "processes every role lives on all devices.",
        ),
    ],
)
def test_devices_that_do_not_fit_the_processes(words, message, capsys):
    assert main(["show-cluster", *words]) == 2
    assert capsys.readouterr().err == f"error: {message}\n"


def test_meshes_of_roles_by_dotted_names():
    words = [
        "--cluster.role_to_mesh.rollout", "data=2,tensor=2@4", "--cluster.axis_rules.vocab=none",
        "--cluster.axis_rules.rollout.embed", "none", "--cluster.role_to_dtype.rollout=bfloat16",
        "--cluster.mesh", "fsdp=4",
    ]  # fmt: skip
    cluster = read_start(words)[1].cluster
    assert cluster.mesh == "fsdp=4"
    assert cluster.role_to_mesh == {"rollout": "data=2,tensor=2@4"}
    assert cluster.axis_rules == {"vocab": "none", "rollout.embed": "none"}
    assert cluster.role_to_dtype == {"rollout": "bfloat16"}
    with pytest.raises(z.ZootomyError, match=r"Unknown role 'rolout'. Did you mean 'rollout'?"):
        with_settings(RunConfig(), {"cluster.role_to_mesh.rolout": "data=2"})


@pytest.mark.parametrize("name", ["colocated", "disaggregated"])
def test_the_examples_fit_eight_devices(name):
    algorithm, run = read_yaml(EXAMPLES / f"{name}.yaml")
    seats = {str(seat.role): seat for seat in seat_roles(algorithm, run, devices=8)}
    assert seats.keys() == {"actor", "reference", "rollout"}
    assert (seats["rollout"].shares == "actor") == (name == "colocated")
    assert draw_seats(list(seats.values())).startswith("device      0  1  2  3")
    assert explain_sizes(algorithm, run).startswith("step: 8 prompts × 4 = 32 completions a step")
