"""How passes are carried out: their programs are run, or compiled ahead of a pass like it."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import Any, NamedTuple

import jax
import numpy as np

from .optimizer_step import StepReport
from .programs import Total


class CompilingStoppedError(Exception):
    """Compiling ahead was told to end."""


class Runner(NamedTuple):
    """What passes are carried out with.

    Attributes:
        call: `(program, *arguments, **named) -> what the program gives`.
        zeros: of a model, where micro-batches are added up.
        step: an optimizer step of a model with a total.
        most: micro-batches of a pass that are gone through; None: all.
    """

    call: Callable[..., Any]
    zeros: Callable[[Any], Any]
    step: Callable[[Any, Total], StepReport]
    most: int | None = None


RUN = Runner(
    call=lambda program, *arguments, **named: program(*arguments, **named),
    zeros=lambda model: model.zeros(),
    step=lambda model, total: model.step(total),
)


def compiling(stop: Event) -> Runner:
    """Compiles programs for the arguments they are given; what they would give is zeros.

    Args:
        stop: ends it before the next program, with a `CompilingStoppedError`.
    """

    def call(program: Any, *arguments: Any, **named: Any) -> Any:
        if stop.is_set():
            raise CompilingStoppedError
        lowered = program.lower(*arguments, **named)
        lowered.compile()
        return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), lowered.out_info)

    def step(model: Any, total: Total) -> StepReport:
        del total
        if stop.is_set():
            raise CompilingStoppedError
        model.compile_step()
        taken: Any = np.True_
        nothing: Any = np.float32(0)
        return StepReport(taken, nothing, nothing)

    # All micro-batches of a pass have one shape.
    return Runner(call, lambda model: model.outline(), step, most=1)
