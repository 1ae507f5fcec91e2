"""Runs in several processes of this machine, each with CPU devices of its own."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

# An evaluation of the shapes of a step, so that there are few programs to compile.
TINY = f"""
    --task.options.terms 2 --task.train_size 23 --task.eval_size 4 --model.preset tiny
    --task.rewards {Path(__file__).with_name("process_rewards.py")}:low_letters
    --rollout.max_prompt_tokens 4 --rollout.max_new_tokens 3 --batch.full 4 --batch.group_size 2
    --cluster.micro_rows 4 --optimizer.learning_rate 0.01
    --evaluation.every 2 --evaluation.samples 2 --evaluation.temperature 1 --samples 1
""".split()
FOUR = [*TINY, "--cluster.mesh", "fsdp=4"]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def start(words, *, devices=2, **environment):
    """One process of Python; what it says is kept."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    given = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", **environment}
    return subprocess.Popen(
        [sys.executable, *words], env=given, text=True, cwd=Path(__file__).parent,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def start_training(folder, *words, processes=2, devices=2, own=((), ()), **environment):
    """The processes of a run, by itself on the devices of all; `own`: told to one of them alone."""
    port = free_port()
    found = []
    for number in range(processes):
        told = ["-m", "zootomy.cli", "train", *TINY, "--folder", str(folder), *words, *own[number]]
        told += ["--distributed.coordinator", f"127.0.0.1:{port}"]
        told += ["--distributed.processes", str(processes), "--distributed.process", str(number)]
        found.append(start(told, devices=devices, **environment))
    return found


def finish(processes, timeout=240):
    """(exit code, standard output, standard error) of each, when all have ended."""
    try:
        said = [one.communicate(timeout=timeout) for one in processes]
    finally:
        for one in processes:
            one.kill()
    return [
        (one.returncode, *map(_without_gloo, words))
        for one, words in zip(processes, said, strict=True)
    ]


def _without_gloo(text):
    """What was said, but for the transport's own greetings."""
    return "".join(x for x in text.splitlines(keepends=True) if not x.startswith("[Gloo]"))


def wait_for_step(folder, step, processes, timeout=240):
    """Wait until a run has logged a step."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if any(line["step"] >= step for line in log(folder)):
            return
        if any(one.poll() is not None for one in processes):
            raise AssertionError(finish(processes))
        time.sleep(0.05)
    raise AssertionError("the run does not get on")


def log(folder) -> list[dict]:
    """The metrics without what depends on the clock."""
    path = Path(folder) / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [
        {k: v for k, v in line.items() if not k.startswith("time") and k != "tokens_per_second"}
        for line in lines
    ]


def assert_same_run(folder, other, but=()):
    """Two runs took the same steps and ended with the same weights, to float tolerance."""
    ours, theirs = log(folder), log(other)
    assert [line["step"] for line in ours] == [line["step"] for line in theirs]
    for mine, yours in zip(ours, theirs, strict=True):
        assert mine.keys() == yours.keys()
        for name, value in yours.items():
            if name.startswith(tuple(but)):
                continue
            # The norm of a gradient that is 0 but for rounding has no relative precision.
            np.testing.assert_allclose(mine[name], value, rtol=2e-3, atol=2e-5, err_msg=name)
    weights = [load_file(Path(one) / "model" / "model.safetensors") for one in (folder, other)]
    assert weights[0].keys() == weights[1].keys()
    for name, array in weights[1].items():
        np.testing.assert_allclose(weights[0][name], array, atol=2e-4, err_msg=name)
