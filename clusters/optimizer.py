"""Optimizers and schedules of optax by name."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from ..registry import ZootomyError, unknown_name

Schedule = Literal["constant", "linear", "cosine"]
Check = Literal["gradients", "updates", "kept updates"]
"""What is looked at before a step is taken; updates that are costly are kept for it."""

# What the loss of a whole batch and its gradient are not enough for.
_UNSUPPORTED = {
    "dpsgd": "it needs the gradient of each example",
    "lbfgs": "it evaluates the loss during its step",
    "momo": "it needs the loss during its step",
    "momo_adam": "it needs the loss during its step",
    "optimistic_adam": "use optimistic_adam_v2 instead",
    "schedule_free": "its weights for sampling differ from those it trains",
    "schedule_free_adamw": "its weights for sampling differ from those it trains",
    "schedule_free_sgd": "its weights for sampling differ from those it trains",
    "sophia": "it evaluates the loss during its step",
}
# Their updates are matrix products, many a parameter; all others go over each number once.
_COSTLY = ("galore", "muon")
# Of these finite gradients make finite updates, within the ranges of `_bounded`.
_BOUNDED = ("adam", "adamw")
# These take a number, not a schedule.
_CONSTANT_ONLY = ("rprop", "sm3")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """An optimizer of optax, its schedule and what is done to the gradient before it.

    Attributes:
        name: a function of `optax` or `optax.contrib` that takes a learning rate, e.g. `adamw`,
            `lion`, `sgd`, `muon`.
        learning_rate: the highest of the schedule.
        schedule: after the warm-up: stay, or fall to 0 at the last step in a line or a half
            cosine.
        warmup_steps: optimizer steps over which the learning rate rises in a line; the first
            takes `learning_rate / warmup_steps`, not 0.
        weight_decay: passed to the optimizer; an error if it has none.
        max_grad_norm: the gradient is scaled down to this global norm; None leaves it alone.
        options: further arguments of the optax function, e.g. `{"b2": 0.95}`.

    Raises:
        ZootomyError: an unknown name or option, or a value outside its range.
    """

    name: str = "adamw"
    learning_rate: float = 1e-6
    schedule: Schedule = "constant"
    warmup_steps: int = 0
    weight_decay: float = 0.0
    max_grad_norm: float | None = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))
        _number("learning_rate", self.learning_rate, 0.0, inclusive=True)
        _number("weight_decay", self.weight_decay, 0.0, inclusive=True)
        if self.max_grad_norm is not None:
            _number("max_grad_norm", self.max_grad_norm, 0.0, inclusive=False)
        warmup = self.warmup_steps
        if isinstance(warmup, bool) or not isinstance(warmup, int) or warmup < 0:
            raise ZootomyError(f"warmup_steps must be an integer >= 0, got {warmup!r}.")
        if self.schedule not in get_args(Schedule):
            raise unknown_name("schedule", self.schedule, get_args(Schedule))
        _check_options(self)

    @property
    def check(self) -> Check:
        """What must be finite for a step to be taken."""
        if self.name in _COSTLY:
            return "kept updates"
        return "gradients" if _bounded(self) else "updates"

    def __hash__(self) -> int:
        return hash((self.name, self.learning_rate, self.schedule, self.warmup_steps))

    def __reduce__(self) -> tuple[Any, ...]:
        # A read-only mapping does not pickle.
        values = {**vars(self), "options": dict(self.options)}
        return functools.partial(OptimizerConfig, **values), ()


def optimizer_names() -> tuple[str, ...]:
    """Every optimizer that `OptimizerConfig.name` may name."""
    return tuple(sorted(set(_factories()) - set(_UNSUPPORTED)))


def make_schedule(config: OptimizerConfig, total_steps: int) -> optax.Schedule:
    """The learning rate of each optimizer step, counted from 0.

    Args:
        config: learning rate, shape and warm-up.
        total_steps: optimizer steps of the whole run (batches times mini-batches times epochs).

    Returns:
        `step -> learning rate`; 0 from `total_steps` on unless constant.

    Raises:
        ZootomyError: if the warm-up is not shorter than the run.
    """
    peak, warmup = config.learning_rate, config.warmup_steps
    if total_steps < 1:
        raise ZootomyError(f"total_steps must be at least 1, got {total_steps}.")
    if warmup and warmup >= total_steps:
        raise ZootomyError(
            f"warmup_steps={warmup} is not shorter than the run of {total_steps} optimizer steps; "
            f"take fewer warm-up steps or more steps."
        )
    rest = total_steps - warmup
    if config.schedule == "linear":
        main = optax.linear_schedule(peak, 0.0, rest)
    elif config.schedule == "cosine":
        main = optax.cosine_decay_schedule(peak, rest)
    else:
        main = optax.constant_schedule(peak)
    if not warmup:
        return main
    rise = optax.linear_schedule(peak / warmup, peak, max(1, warmup - 1))
    return optax.join_schedules([rise, main], [warmup])


@functools.lru_cache(maxsize=64)
def make_optimizer(config: OptimizerConfig, total_steps: int) -> optax.GradientTransformation:
    """The optimizer of a config; the same one for the same arguments, so that programs are reused.

    Args:
        config: what to make.
        total_steps: optimizer steps of the whole run, the horizon of the schedule.

    Returns:
        `chain(clip_by_global_norm, optimizer)`.

    Raises:
        ZootomyError: if the optimizer takes no schedule but is given one.
    """
    varies = config.schedule != "constant" or config.warmup_steps > 0
    if varies and config.name in _CONSTANT_ONLY:
        raise ZootomyError(
            f"The optimizer {config.name!r} takes no schedule; use schedule='constant' and "
            "warmup_steps=0, or another optimizer."
        )
    schedule = make_schedule(config, total_steps)
    arguments: dict[str, Any] = dict(config.options)
    arguments["learning_rate"] = schedule if varies else config.learning_rate
    if "weight_decay" in _parameters(config.name):
        arguments["weight_decay"] = config.weight_decay
    if config.name == "muon" and "muon_weight_dimension_numbers" not in arguments:
        arguments["muon_weight_dimension_numbers"] = _muon_dimensions
    optimizer = _factories()[config.name](**arguments)
    if config.max_grad_norm is None:
        return optimizer
    return optax.chain(_clip(config.max_grad_norm), optimizer)


def _bounded(config: OptimizerConfig) -> bool:
    """Whether finite gradients can only make finite updates.

    Adam's moments of gradients that are clipped at a norm G are |m| <= G and 0 <= v <= G², so

        |update| <= learning_rate * (G / (1 - b1) / eps + weight_decay * |parameter|)

    which float32 holds within these ranges, and within others may not.
    """
    clip, options = config.max_grad_norm, {"b1": 0.9, "b2": 0.999, "eps": 1e-8, **config.options}
    numbers = all(isinstance(value, int | float) for value in options.values())
    others = len(options) > 3
    if config.name not in _BOUNDED or clip is None or others or not numbers:
        return False
    decays = all(0 <= options[name] <= 1 - 1e-6 for name in ("b1", "b2"))
    small = clip <= 1e6 and config.learning_rate <= 1 and config.weight_decay <= 1
    return decays and small and options["eps"] >= 1e-16


def _clip(max_norm: float) -> optax.GradientTransformation:
    """`optax.clip_by_global_norm` by one factor for all numbers.

    A quotient for each, as there, the compiler writes to memory before the moments read it. Whoever
    knows the norm already gives it as `grad_norm`.
    """

    def update(
        updates: Any,
        state: Any,
        params: Any = None,
        *,
        grad_norm: jax.Array | None = None,
        **others: Any,
    ) -> tuple[Any, Any]:
        del params, others  # What else is in a chain may ask for more.
        norm = optax.tree.norm(updates) if grad_norm is None else grad_norm
        factor = jnp.where(norm < max_norm, 1.0, max_norm / norm)
        return jax.tree.map(lambda g: g * factor.astype(g.dtype), updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def _muon_dimensions(params: Any) -> Any:
    """Muon orthogonalises the matrices inside the network; embedding and heads go to its Adam."""

    def dimensions(path: tuple[Any, ...], leaf: Any) -> Any:
        name = jax.tree_util.keystr(path)
        outer = any(word in name for word in ("embed", "head"))
        return None if outer or leaf.ndim != 2 else optax.contrib.MuonDimensionNumbers()

    return jax.tree_util.tree_map_with_path(dimensions, params)


@functools.cache
def _factories() -> Mapping[str, Callable[..., optax.GradientTransformation]]:
    found = {}
    for module in (optax.contrib, optax):
        for name, value in vars(module).items():
            if not inspect.isfunction(value) or name.startswith(("_", "scale_by")):
                continue
            if "learning_rate" in inspect.signature(value).parameters:
                found[name] = value
    return found


def _parameters(name: str) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(_factories()[name]).parameters


def _check_options(config: OptimizerConfig) -> None:
    if config.name in _UNSUPPORTED:
        raise ZootomyError(
            f"The optimizer {config.name!r} is not supported: {_UNSUPPORTED[config.name]}."
        )
    if config.name not in _factories():
        raise unknown_name("optimizer", config.name, optimizer_names())
    known = _parameters(config.name)
    own = [name for name in ("learning_rate", "weight_decay") if name in config.options]
    if own:
        raise ZootomyError(f"Give {own[0]} as the field {own[0]}, not in options.")
    for option in config.options:
        if option not in known:
            names = set(known) - {"learning_rate", "weight_decay"}
            raise unknown_name(f"option of the optimizer {config.name!r}", option, names)
        default, given = known[option].default, config.options[option]
        if isinstance(default, int | float) and isinstance(given, str):
            raise ZootomyError(
                f"The option {option!r} of the optimizer {config.name!r} must be a number such as "
                f"{default!r}, got the text {given!r}."
            )
    if config.weight_decay and "weight_decay" not in known:
        raise ZootomyError(
            f"The optimizer {config.name!r} has no weight decay, but weight_decay="
            f"{config.weight_decay}; set it to 0 or choose an optimizer that has, e.g. 'adamw'."
        )


def _number(name: str, value: object, least: float, *, inclusive: bool) -> None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good or value < least or (value == least and not inclusive):  # type: ignore[operator]
        sign = ">=" if inclusive else ">"
        raise ZootomyError(f"{name} must be a number {sign} {least:g}, got {value!r}.")
