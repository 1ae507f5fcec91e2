"""Start a run again and again and kill it at random moments, until one gets to its end.

A program of its own: it imports everything once and forks each attempt from there, before JAX has
started any thread, so that an attempt costs the run alone.

    python killed_runs.py CONFIG.yaml FOLDER KILLS SEED

It prints the tally as JSON: how many attempts were killed, how many of them while a checkpoint was
being written, and how many steps each attempt found saved.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path


def attempt(file, folder, resume):
    """The process of a run; it never returns."""
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    from rich.console import Console
    from zootomy.learners.run import train
    from zootomy.learners.run_config import read_yaml

    code = 1
    try:
        train(*read_yaml(file), resume=resume, console=Console(quiet=True))
        code = 0
    finally:
        os._exit(code)


def saved(folder):
    """The steps that are in place."""
    return sorted(int(p.name) for p in (folder / "checkpoints").glob("[0-9]*") if p.is_dir())


def is_saving(drafts, began):
    """Whether a checkpoint is half written, and not by an attempt before this one."""
    try:
        return any(path.stat().st_ctime > began for path in drafts.iterdir())
    except FileNotFoundError:
        return False


def wait_for(process, until):
    """Wait until a condition, or the end of the process; whether it has ended."""
    while not until():
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return True, status
        time.sleep(0.0005)
    return False, None


def main():
    file, folder, kills, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    import zootomy.learners.compilation
    import zootomy.learners.run

    zootomy.learners.compilation.keep_compilations()
    rng = random.Random(seed)
    tally = {"kills": 0, "while_saving": 0, "found": []}
    drafts = folder / "checkpoints" / "unfinished"
    while True:
        before = saved(folder)
        tally["found"].append(before[-1] if before else 0)
        began = time.time()
        process = os.fork()
        if not process:
            attempt(file, folder, resume=(folder / "run.yaml").is_file())
        if tally["kills"] >= kills:
            _, status = os.waitpid(process, 0)
            tally["exit"] = os.waitstatus_to_exitcode(status)
            break
        newest = before[-1] if before else 0
        moment = rng.choice(["any", "after a save", "in a save"])
        if moment == "any":
            end = time.monotonic() + rng.uniform(0, 8)
            ended, status = wait_for(process, lambda end=end: time.monotonic() > end)
        else:
            ended, status = wait_for(process, lambda newest=newest: saved(folder)[-1:] > [newest])
        if not ended and moment == "in a save":
            ended, status = wait_for(process, lambda began=began: is_saving(drafts, began))
            time.sleep(rng.uniform(0, 0.05))
        elif not ended and moment == "after a save":
            time.sleep(rng.uniform(0, 0.4))
        if ended:
            tally["exit"] = os.waitstatus_to_exitcode(status)
            break
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        tally["kills"] += 1
        tally["while_saving"] += is_saving(drafts, began)
    print(json.dumps(tally))  # noqa: T201


if __name__ == "__main__":
    main()
