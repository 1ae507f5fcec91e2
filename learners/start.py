"""What is refused before a run loads anything, and by whoever only draws it."""

from __future__ import annotations

from collections.abc import Iterable

from ..clusters import ClusterConfig, OptimizerConfig, make_optimizer
from ..clusters.row_sizes import row_length
from ..registry import ZootomyError
from ..rollout import check_transfer
from .algorithm import Algorithm
from .checks import check_choices, refuse_refresh
from .run_config import RunConfig
from .score_scale import check_scales
from .settings import named
from .sources import roles_of
from .whole import check_fits


def check_start(algorithm: Algorithm, config: RunConfig, devices: int | None = None) -> None:
    """Refuse settings that do not fit the algorithm, or each other.

    Args:
        algorithm: as it was chosen.
        config: the run.
        devices: how many there are to be; None: those of this machine.

    Raises:
        ZootomyError: naming the setting, and what to change.
    """
    check_choices(algorithm, config.rollout, config.batch, config.critic_warmup)
    check_transfer(config.rollout)
    if "reference" not in algorithm.needs:
        _refuse_reference(algorithm, config)
    if algorithm.value_loss is None:
        _refuse_critic(algorithm, config)
    config.cluster.check_roles(roles_of(algorithm, config))
    if config.critic.shared:
        config.cluster.check_shared_critic()
    check_scales(algorithm, {name: model.scale for name, model in config.scorers.items()})
    _check_rows(algorithm, config, devices)
    _check_schedules(algorithm, config)


def refuse_idle(algorithm: Algorithm, config: RunConfig, given: Iterable[str]) -> None:
    """Refuse settings, given for this very run, of a part that it does not have.

    A file may serve several algorithms, and hold the settings of a critic for some of them.

    Args:
        algorithm: as it was chosen.
        config: the run.
        given: dotted names of settings.

    Raises:
        ZootomyError: naming one of them.
    """
    idle = {}
    if algorithm.value_loss is None:
        idle["critic_optimizer"] = (
            f"algorithm {algorithm.name!r} has no critic. Leave it out, or set value_loss to "
            "'clipped_mse'."
        )
    if not config.warmup.steps:
        idle["warmup"] = "warmup.steps is 0. Leave it out, or set warmup.steps."
    for name in given:
        part, _, setting = name.partition(".")
        if part in idle and setting != "steps":
            raise ZootomyError(f"{name} has no effect: {idle[part]}")


def idle_note(algorithm: Algorithm, config: RunConfig) -> str:
    """A line on settings that a file has for other algorithms than this one; empty for none."""
    usual = RunConfig().critic_optimizer
    if algorithm.value_loss is not None or config.critic_optimizer == usual:
        return ""
    return f"critic_optimizer is not used: algorithm {algorithm.name!r} has no critic"


def _refuse_reference(algorithm: Algorithm, config: RunConfig) -> None:
    path = config.reference.path
    if path:
        raise ZootomyError(
            f"reference.path is {path!r}, but algorithm {algorithm.name!r} compares with no "
            f"reference, so it has no effect. Add a term that does (a kl_placement, or the "
            f"regularizer 'kl' or 'distillation'), or leave reference.path empty."
        )
    refuse_refresh(algorithm, config.reference.refresh_steps)


def _refuse_critic(algorithm: Algorithm, config: RunConfig) -> None:
    path, shared = config.critic.path, config.critic.shared
    if path or shared:
        setting = "critic.shared is true" if shared else f"critic.path is {path!r}"
        leave = "critic.shared out" if shared else "critic.path empty"
        raise ZootomyError(
            f"{setting}, but algorithm {algorithm.name!r} has no critic, so it has no effect. "
            f"Set value_loss to 'clipped_mse', or leave {leave}."
        )


def _check_rows(algorithm: Algorithm, config: RunConfig, devices: int | None) -> None:
    """Rows too short for a sequence, or too few for blocks that see a whole mini-batch."""
    cluster, rollout = config.cluster, config.rollout
    with named("cluster", ClusterConfig):
        length = row_length(cluster, rollout.max_prompt_tokens + rollout.max_new_tokens, devices)
        shape = cluster.rows(length, devices), length
    check_fits(algorithm, cluster, shape, rollout, config.batch, devices)


def _check_schedules(algorithm: Algorithm, config: RunConfig) -> None:
    """A warm-up longer than the run, or a schedule that an optimizer does not take."""
    used = {"optimizer": config.optimizer}
    if algorithm.value_loss is not None:
        used["critic_optimizer"] = config.critic_optimizer
    for name, optimizer in used.items():
        with named(name, OptimizerConfig):
            make_optimizer(optimizer, config.steps * config.batch.updates)
