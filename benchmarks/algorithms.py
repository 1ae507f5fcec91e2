"""The demo's task by every algorithm over three seeds: what each one makes of the same start.

For each seed the warm-up runs once; every algorithm then starts from the same weights. Writes
`runs/algorithms/table.md`, `results.json` and `curves.png`; runs that are there are not repeated.

    python benchmarks/algorithms.py                        # all, about forty minutes on two cores
    python benchmarks/algorithms.py --algorithms grpo rloo --seeds 0
"""

from __future__ import annotations

import json
import os
import platform
import statistics
from dataclasses import replace
from pathlib import Path

import tyro
import zootomy as z
from rich.console import Console
from zootomy.learners.compilation import keep_compilations
from zootomy.learners.run import build_model, train
from zootomy.learners.run_config import RunConfig, WarmupConfig, read_yaml
from zootomy.learners.warmup import warm_up
from zootomy.models import save_model
from zootomy.monitor import plot_runs, read_log
from zootomy.tasks import make_task

DEMO = Path(__file__).parent.parent / "examples" / "demo.yaml"
DEFAULT = ("grpo", "ppo", "rloo", "reinforce_pp_baseline", "dr_grpo", "gspo", "dapo")


def warmed_up(config: RunConfig, folder: Path) -> Path:
    """The weights after the demo's warm-up with this seed, as a Hugging Face folder."""
    path = folder / f"warmed-up-{config.seed}"
    if not (path / "config.json").is_file():
        task = make_task(config.task)
        model = warm_up(
            build_model(config, task),
            task,
            config=config.warmup,
            cluster=config.cluster,
            rollout=config.rollout,
            seed=config.seed,
        )
        save_model(model, path, overwrite=True)
    return path


def run(name: str, seed: int, folder: Path, steps: int | None, console: Console) -> Path:
    """One run, unless it is there already."""
    algorithm = z.algorithm(name)
    target = folder / f"{name}-{seed}"
    if (target / "curves.png").is_file():
        return target
    _, demo = read_yaml(DEMO)
    demo = replace(demo, seed=seed)
    cluster = demo.cluster
    if "whole_batch" in algorithm.needs:
        # Such a block looks at the whole mini-batch, so that must be one micro-batch.
        cluster = replace(cluster, micro_rows=demo.batch.completions)
    config = replace(
        demo,
        cluster=cluster,
        steps=steps or demo.steps,
        model=replace(demo.model, path=str(warmed_up(demo, folder))),
        warmup=WarmupConfig(steps=0),
        checkpoint=replace(demo.checkpoint, every=0),
        folder=str(target),
    )
    train(algorithm, config, console=console)
    return target


def row(algorithm: str, targets: list[Path]) -> dict:
    """What the runs of an algorithm came to, a value a seed."""
    logs = [read_log(target) for target in targets]
    accuracy = [[r["eval/accuracy"] for r in log if "eval/accuracy" in r] for log in logs]
    seconds = [[r["time/step"] for r in log if "time/step" in r] for log in logs]
    return {
        "algorithm": algorithm,
        "before": [100 * values[0] for values in accuracy],
        "after": [100 * values[-1] for values in accuracy],
        "gain": [100 * (values[-1] - values[0]) for values in accuracy],
        "seconds_per_step": [statistics.median(values) for values in seconds],
    }


def table(rows: list[dict]) -> str:
    """The rows as Markdown, best first."""
    lines = [
        "| algorithm | accuracy before | after | gain, each seed | s a step |",
        "|---|---|---|---|---|",
    ]
    for entry in sorted(rows, key=lambda r: -statistics.fmean(r["after"])):
        gains = ", ".join(f"{gain:+.1f}" for gain in entry["gain"])
        lines.append(
            f"| {entry['algorithm']} | {_spread(entry['before'])} | {_spread(entry['after'])} "
            f"| {gains} | {statistics.fmean(entry['seconds_per_step']):.2f} |"
        )
    return "\n".join(lines) + "\n"


def _spread(values: list[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.1f}"
    return f"{statistics.fmean(values):.1f} ± {statistics.stdev(values):.1f}"


def main(
    algorithms: tuple[str, ...] = DEFAULT,
    seeds: tuple[int, ...] = (0, 1, 2),
    folder: Path = Path("runs/algorithms"),
    steps: int | None = None,
) -> None:
    """Run what is missing and write the table.

    Args:
        algorithms: names of the zoo, or `all`.
        seeds: each is another warm-up, other prompts and other noise.
        folder: where runs and results go.
        steps: learner steps a run; None: as many as the demo.
    """
    keep_compilations()
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(quiet=True)
    if algorithms == ("all",):
        algorithms = tuple(z.algorithms())
    runs: dict[str, list[Path]] = {name: [] for name in algorithms}
    for seed in seeds:
        for name in algorithms:
            runs[name].append(run(name, seed, folder, steps, console))
            done = row(name, runs[name][-1:])
            print(
                f"{name} seed {seed}: {done['before'][0]:.1f}% -> {done['after'][0]:.1f}%",
                flush=True,
            )
    rows = [row(name, targets) for name, targets in runs.items()]
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "seeds": list(seeds)}
    results = {"machine": machine, "rows": rows}
    (folder / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    (folder / "table.md").write_text(table(rows))
    plot_runs(runs, folder / "curves.png", title="The demo, algorithm by algorithm")
    print(table(rows))


if __name__ == "__main__":
    tyro.cli(main)
