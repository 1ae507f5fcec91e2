"""A whole run: from a config to a folder with weights, logs, samples and a picture."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flax import nnx
from rich.console import Console

from ..clusters import Cluster, Role, join_processes
from ..models import Decoder, add_adapters, is_first, make_model
from ..monitor import RunLog, SampleLog, Screen, plot_runs, write_markdown
from ..registry import ZootomyError
from ..rollout import check_available, make_engine
from ..tasks import Task, make_task
from .algorithm import Algorithm
from .compilation import compilations_told, keep_compilations
from .evaluation import check_prompts, evaluate
from .judge import check_names
from .learner import Learner
from .loop import Loop
from .mismatch import recommend_correction
from .processes import check_same_run, screen_of, telemetry_of, watch_processes
from .run_config import RunConfig, read_yaml, without_engine
from .run_folder import (
    PLOT_FILE,
    keep_backbone,
    kept_backbone,
    open_checkpoints,
    prepare_folder,
    save_policy,
    starting_point,
)
from .saved import CONFIG_FILE, MODEL_FOLDER, is_folder, load_policy, run_of
from .seeds import derive_seed
from .settings import with_settings
from .sources import (
    make_critic,
    make_reference,
    make_reward_models,
    model_options,
    reading,
    with_pinned_scorers,
)
from .start import check_start, idle_note
from .telemetry import Telemetry
from .warmup import warm_up


@dataclass(frozen=True)
class RunResult:
    """What a run came to.

    Attributes:
        folder: the run folder.
        before: the evaluation's metrics before the first step.
        after: the evaluation's metrics after the last step.
        plot: the picture of the curves.
    """

    folder: Path
    before: dict[str, float]
    after: dict[str, float]
    plot: Path


def train(
    algorithm: Algorithm,
    config: RunConfig,
    *,
    resume: bool = False,
    console: Console | None = None,
) -> RunResult:
    """Train a policy and leave a run folder behind.

    The folder holds `run.yaml` (every value of the run), `metrics.jsonl` and TensorBoard files,
    samples, checkpoints, the trained weights as a Hugging Face folder (of adapters also as a PEFT
    folder), and `curves.png`.

    Args:
        algorithm: the algorithm.
        config: everything else.
        resume: go on with the run in the folder, from its newest checkpoint.
        console: where to show progress; None: the standard output.

    Returns:
        The result.

    Raises:
        ZootomyError: if something does not fit together, or the folder holds another run.
        RunStopped: after SIGTERM or SIGINT, when the step under way is done and saved.
    """
    join_processes(config.distributed)
    with watch_processes(config.distributed):
        return _train(algorithm, config, resume, console)


def _train(
    algorithm: Algorithm, config: RunConfig, resume: bool, console: Console | None
) -> RunResult:
    keep_compilations()
    config = with_pinned_scorers(config)
    folder = Path(config.folder)
    algorithm = algorithm.resolve_length(config.rollout.max_new_tokens)
    algorithm, note = recommend_correction(algorithm, config.rollout)
    check_start(algorithm, config)
    check_available(config.rollout)
    task = make_task(config.task)
    check_names(task, config.scorers)
    check_same_run(algorithm, config, task)
    model = build_model(config, task)
    prepare_folder(folder, algorithm, config, resume)
    with contextlib.ExitStack() as stack:
        checkpoints = stack.enter_context(open_checkpoints(folder, config.checkpoint))
        start, complaints = starting_point(checkpoints) if resume else (None, [])
        title = f"{algorithm.name} on {task.name}, seed {config.seed}"
        screen = stack.enter_context(
            Screen(title, config.steps, start_step=start or 0, console=screen_of(console))
        )
        stack.enter_context(compilations_told(screen.passing))
        screen.message(config.batch.explain(config.steps))
        for line in filter(None, (note, idle_note(algorithm, config))):
            screen.message(line)
        check_prompts(task, config.rollout, config.evaluation)
        for complaint in complaints:
            screen.message(complaint)
        if start is None and config.warmup.steps:
            # What cannot be trained is refused now, and not when the warm-up is over.
            build_learner(algorithm, without_engine(config), task, model)
            model = _warm_up(model, task, config, screen)
        if config.lora.rank:
            if start is not None:
                model = kept_backbone(folder, config) or model
            elif config.warmup.steps or not is_folder(config.model.path):
                keep_backbone(folder, model, config.model)
        screen.status("building the models")
        learner = build_learner(algorithm, config, task, model)
        if start is not None:
            learner.restore(*checkpoints.restore(learner.state()[0], start))
            screen.message(f"resumed after step {start}")
        # Without a checkpoint a resumed run begins again, and so does its log.
        log_from = (start if start is not None else -1) if resume else None
        log = stack.enter_context(RunLog(folder, resume_step=log_from, writes=is_first()))
        samples = SampleLog(folder, resume_step=log_from, writes=is_first())
        stack.callback(samples.close)
        telemetry = stack.enter_context(
            Telemetry(folder, telemetry_of(config.telemetry), resume=resume)
        )
        loop = Loop(learner, config, screen, log, samples, checkpoints, telemetry)
        before = loop.first_evaluation(resumed=start is not None)
        after = loop.run(before)
        save_policy(folder, learner.cluster.model(Role.ACTOR), config.model)
        learner.cluster.close()
    plot = folder / PLOT_FILE
    if is_first():
        write_markdown(folder)
        plot_runs(folder, plot, title=title)
    return RunResult(folder, before, after, plot)


def build_model(config: RunConfig, task: Task) -> Decoder:
    """The policy that a config names, before any training.

    Raises:
        ZootomyError: if the model cannot be read, or the tokenizer has more tokens than it.
    """
    source, options = config.model, model_options(config, Role.ACTOR)
    if source.path:
        with reading("model.path"):
            model = load_policy(source.path, **options)
    else:
        model = make_model(
            source.preset,
            seed=derive_seed(config.seed, "model"),
            vocab_size=task.tokenizer.vocab_size,
            **options,
        )
    if task.tokenizer.vocab_size > model.config.vocab_size:
        raise ZootomyError(
            f"The tokenizer has {task.tokenizer.vocab_size} tokens, the model only "
            f"{model.config.vocab_size}. Use the tokenizer that belongs to the model."
        )
    return model


def build_learner(algorithm: Algorithm, config: RunConfig, task: Task, model: Decoder) -> Learner:
    """A learner with its cluster: the roles that the algorithm needs, around one policy."""
    check_start(algorithm, config)
    actor = model
    if config.lora.rank:
        actor = add_adapters(model, config.lora, rngs=nnx.Rngs(derive_seed(config.seed, "lora")))
    critic = make_critic(algorithm, config, model)
    limits = config.rollout
    cluster = Cluster(
        config.cluster,
        actor=actor,
        optimizer=config.optimizer,
        total_steps=config.steps * config.batch.updates,
        max_tokens=limits.max_prompt_tokens + limits.max_new_tokens,
        max_prompt_tokens=limits.max_prompt_tokens,
        group_size=config.batch.group_size,
        reference=make_reference(algorithm, config),
        critic=critic,
        critic_optimizer=None if critic is None else config.critic_optimizer,
        reward=make_reward_models(config),
        engine=limits,
    )
    return Learner(
        algorithm,
        task,
        cluster,
        rollout=limits,
        batch=config.batch,
        seed=config.seed,
        critic_warmup=config.critic_warmup,
        score_scales={name: model.scale for name, model in config.scorers.items()},
        value_coef=config.critic.coef if config.critic.shared else None,
        max_staleness=config.max_staleness,
        reference_refresh_steps=config.reference.refresh_steps,
    )


def _warm_up(model: Decoder, task: Task, config: RunConfig, screen: Screen) -> Decoder:
    """Supervised steps, with a line of progress now and then."""
    screen.status("compiling the warm-up")
    every = max(1, config.warmup.steps // 4)

    def report(step: int, loss: float) -> None:
        if step % every == 0:
            screen.message(f"warm-up step {step}/{config.warmup.steps}: {loss:.3f} nats a token")

    return warm_up(
        model,
        task,
        config=config.warmup,
        cluster=config.cluster,
        rollout=config.rollout,
        seed=config.seed,
        report=report,
    )


def evaluate_folder(
    folder: Path, changes: Mapping[str, Any], *, model: str = "", seed: int = 0
) -> dict[str, float]:
    """Examine the trained policy of a run folder.

    Args:
        folder: a run folder.
        changes: dotted name -> value, of settings that replace those of the run.
        model: a Hugging Face folder, or a checkpoint of a run, to examine instead of the run's
            own; empty: its own.
        seed: of the sampling.

    Returns:
        The evaluation's metrics.

    Raises:
        ZootomyError: if the folder holds no run, or the run has not finished.
    """
    if not (folder / CONFIG_FILE).is_file():
        run = run_of(folder)
        inside = run is not None and (run / CONFIG_FILE).is_file()
        other = f" Name {str(run)!r}, and the checkpoint with --model." if inside else ""
        raise ZootomyError(f"{str(folder)!r} is no run folder: it has no {CONFIG_FILE}.{other}")
    _, config = read_yaml(folder / CONFIG_FILE)
    path = Path(model) if model else folder / MODEL_FOLDER
    if not path.is_dir() and not model:
        raise ZootomyError(
            f"{str(folder)!r} holds no trained weights yet: the run has not finished. Resume it, "
            f"or name a model with --model."
        )
    evaluation = with_settings(config, changes).evaluation
    task = make_task(config.task)
    with reading("--model" if model else str(folder)):
        policy = load_policy(path, dtype=config.model.dtype, param_dtype=config.model.param_dtype)
    with contextlib.closing(make_engine(config.rollout, policy)) as engine:
        return evaluate(task, engine, config.rollout, evaluation, seed).metrics
