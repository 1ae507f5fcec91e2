"""Whether an algorithm, a cluster and the settings of a run fit together."""

from __future__ import annotations

import warnings

from ..clusters import Cluster, Role
from ..registry import ZootomyError, describe
from ..registry import slot as find_slot
from ..rollout import RolloutConfig
from .algorithm import Algorithm
from .batch import BatchConfig
from .costs import reference_asked_by
from .role_config import check_refresh
from .validation import DoubtfulChoiceWarning
from .vocabulary import check_vocabulary
from .whole import check_fits

# What blocks may need and a run can have.
PROVIDED = frozenset(
    {
        "components",
        "critic",
        "entropy",
        "greedy_baseline",
        "groups",
        "logits",
        "old_logp",
        "prompt_values",
        "reference",
        "rollout_logp",
        "running_reward",
        "sum_pi_squared",
        "turns",
        "whole_batch",
    }
)


def _check_needs(algorithm: Algorithm) -> None:
    for name, _ in algorithm.plugged:
        if not find_slot(name).after:
            raise ZootomyError(
                f"Slot {name!r} stands nowhere in the assembled functions, so this learner would "
                f"never ask its block. Add the slot with after='reward_shaping', 'whitening' or "
                f"'policy_loss', or ask it in a loop of your own."
            )
    for slot, spec in algorithm.specs():
        if slot == "kl_estimator" and algorithm.kl_placement == "none":
            continue
        needs = describe(slot, spec.name).needs_with(spec.hyperparameters)
        unmet = sorted(needs - PROVIDED)
        if unmet:
            raise ZootomyError(
                f"{slot} {spec.name!r} needs {', '.join(unmet)}, which this learner does not "
                f"provide; it provides {', '.join(sorted(PROVIDED))}."
            )


def check_choices(
    algorithm: Algorithm, rollout: RolloutConfig, batch: BatchConfig, critic_warmup: int
) -> None:
    """Refuse what cannot be trained, whatever the models are.

    Raises:
        ZootomyError: naming what does not fit together, and what to change.
    """
    algorithm.check_run(group_size=batch.group_size, rollout_logp=rollout.reports_logp)
    _check_needs(algorithm)
    check_vocabulary(algorithm)
    sampling = rollout.sampling()
    if sampling.greedy:
        raise ZootomyError(
            "rollout.temperature is 0: all completions of a prompt would be the same. Training "
            "needs a temperature above 0 (1.0 is usual)."
        )
    if not sampling.full_distribution:
        raise ZootomyError(
            "rollout.top_p, top_k or min_p cut the distribution that is sampled from, and the "
            "trainer's log-probabilities are those of the whole one: the importance ratio would "
            "not start at 1. Train with top_p=1, top_k=None and min_p=0."
        )
    if critic_warmup and algorithm.value_loss is None:
        raise ZootomyError(
            f"critic_warmup is {critic_warmup}, but algorithm {algorithm.name!r} has no "
            f"critic: nothing would learn in these steps. Set it to 0, or value_loss to "
            f"'clipped_mse'."
        )


def check_run(
    algorithm: Algorithm, cluster: Cluster, rollout: RolloutConfig, batch: BatchConfig
) -> None:
    """Refuse a cluster that lacks what an algorithm needs.

    Raises:
        ZootomyError: naming what does not fit together, and what to change.
    """
    if cluster.engine is None:
        raise ZootomyError(
            "The cluster has no rollout engine; make it with engine=make_engine(rollout, actor)."
        )
    if "reference" in algorithm.needs and Role.REFERENCE not in cluster.roles:
        asking = ", ".join(reference_asked_by(algorithm))
        raise ZootomyError(
            f"Algorithm {algorithm.name!r} needs a reference, because of {asking}, and the cluster "
            f"has none. Give the cluster reference='snapshot', or drop what needs it."
        )
    if algorithm.value_loss is not None and Role.CRITIC not in cluster.roles:
        raise ZootomyError(
            f"Algorithm {algorithm.name!r} needs a critic, and the cluster has none. Give the "
            f"cluster critic=ValueModel(...), or use an algorithm without one."
        )
    shape = cluster.micro_rows, cluster.row_length
    check_fits(algorithm, cluster.config, shape, rollout, batch)


def check_options(
    algorithm: Algorithm, cluster: Cluster, max_staleness: int, reference_refresh_steps: int
) -> int:
    """Refuse a refresh of nothing, warn of stale batches that nothing corrects.

    Returns:
        `reference_refresh_steps`.
    """
    check_refresh(reference_refresh_steps)
    if Role.REFERENCE not in cluster.roles:
        refuse_refresh(algorithm, reference_refresh_steps)
    if max_staleness and algorithm.correction is None and not algorithm.bypasses:
        warnings.warn(
            f"max_staleness={max_staleness} trains on what older weights sampled, and algorithm "
            f"{algorithm.name!r} does not correct for it: add a correction, as in "
            f"{algorithm.name}+tis.",
            DoubtfulChoiceWarning,
            stacklevel=4,
        )
    return reference_refresh_steps


def refuse_refresh(algorithm: Algorithm, steps: int) -> None:
    """Refuse to refresh a reference that there is not.

    Raises:
        ZootomyError: for another number of steps than 0.
    """
    if steps:
        raise ZootomyError(
            f"reference.refresh_steps is {steps}, but algorithm {algorithm.name!r} has no "
            f"reference. Set it to 0."
        )
