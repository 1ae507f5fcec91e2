"""How passes are carried out: their programs are run, or compiled ahead of a pass like it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from .ahead import Ahead, key_of
from .optimizer_step import StepReport
from .programs import Total


class Runner(NamedTuple):
    """What passes are carried out with.

    Attributes:
        call: `(program, *arguments, **named) -> what the program gives`.
        run: likewise, of a small program whose results decide what follows.
        before_update: told of the model.
        zeros: of a model, where micro-batches are added up.
        step: an optimizer step of a model with a total.
        most: micro-batches of a pass that are gone through; None: all.
    """

    call: Callable[..., Any]
    run: Callable[..., Any]
    before_update: Callable[[Any], None]
    zeros: Callable[[Any], Any]
    step: Callable[[Any, Total], StepReport]
    most: int | None = None


def running(ahead: Ahead) -> Runner:
    """Runs programs, once a thread that compiles them ahead has them."""

    def call(program: Any, *arguments: Any, **named: Any) -> Any:
        ahead.meet(program, arguments, named)
        return program(*arguments, **named)

    def before_update(model: Any) -> None:
        # While the thread has the gradient under way, after which it would come to the step.
        if ahead.going:
            model.compile_step()

    return Runner(
        call,
        call,
        before_update,
        zeros=lambda model: model.zeros(),
        step=lambda model, total: model.step(total),
    )


def compiling(ahead: Ahead) -> Runner:
    """Compiles programs for the arguments they are given; what they would give is zeros."""

    def call(program: Any, *arguments: Any, **named: Any) -> Any:
        def work() -> Any:
            lowered = program.lower(*arguments, **named)
            lowered.compile()
            return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), lowered.out_info)

        return ahead.compile(key_of(program, arguments, named), work)

    def run(program: Any, *arguments: Any, **named: Any) -> Any:
        key = key_of(program, arguments, named)
        return ahead.compile(key, lambda: program(*arguments, **named))

    def step(model: Any, total: Total) -> StepReport:
        del total
        model.compile_step()
        taken: Any = np.True_
        nothing: Any = np.float32(0)
        return StepReport(taken, nothing, nothing)

    # All micro-batches of a pass have one shape.
    return Runner(call, run, lambda model: None, lambda model: model.outline(), step, most=1)
