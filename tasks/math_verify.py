"""Mathematical answers compared as mathematics: 1/2, 0.5 and \\frac{1}{2} are the same."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Sequence
from typing import Any

from .lazy import require
from .types import Prompt, RewardFunction

_SECONDS = 5
_LARGEST_EXPONENT = 10_000
_PURPOSE = "The math_verify reward"


def math_verify_reward(weight: float = 1.0) -> RewardFunction:
    """A reward of 1 where a completion's answer equals the `answer` column's, else 0.

    A gold answer may be a number, LaTeX with or without dollars, hold a `\\boxed{...}`, or be a
    whole solution that ends in `#### 42`. A gold that cannot be read is a failure of the
    completions it belongs to, not a 0; a completion without a readable answer is a 0.

    A comparison that does not end (completions may hold towers of exponents) is stopped after
    5 seconds and is a failure; that works on the main thread only, since it rests on a signal.
    Numbers with huge exponents are never equal to anything, on any thread.

    Args:
        weight: its factor in the total reward.

    Returns:
        The reward function, named `math_verify`.

    Raises:
        TaskError: if math-verify is not installed.
    """
    require("math_verify", _PURPOSE)
    return RewardFunction("math_verify", compare_answers, weight, alone=True)


def compare_answers(
    prompts: Sequence[Prompt], completions: Sequence[str], answer: Sequence[Any]
) -> list[float | Exception]:
    """One number a completion: 1 equal, 0 not; an exception where the two cannot be compared."""
    golds = {gold: _parse_gold(gold) for gold in {str(a) for a in answer}}
    return [
        _compare(golds[str(a)], completion, str(a))
        for a, completion in zip(answer, completions, strict=True)
    ]


def gold_text(answer: str) -> str:
    """The answer itself out of a gold column: what follows the last `####`, in LaTeX dollars.

    >>> gold_text("2 and 2 make 4. #### 4")
    '$4$'
    """
    text = answer.rpartition("####")[2].strip()
    return text if "$" in text or "\\boxed" in text else f"${text}$"


def _parse_gold(answer: str) -> list[Any] | Exception:
    try:
        parsed = _parse(gold_text(answer))
    except Exception as error:
        return error
    return parsed or ValueError(f"the gold answer {answer!r} cannot be read as mathematics")


def _compare(gold: list[Any] | Exception, completion: str, answer: str) -> float | Exception:
    if isinstance(gold, Exception):
        return gold
    try:
        given = _parse(completion)
        if any(map(_is_huge, given)):
            return 0.0
        verify = require("math_verify", _PURPOSE).verify
        return float(verify(gold, given, timeout_seconds=_seconds(), raise_on_error=True))
    except Exception as error:
        return _plain(error, answer)
    except BaseException as error:
        # math-verify's timeout is no Exception; a keyboard interrupt is none either.
        if type(error).__name__ != "TimeoutException":
            raise
        return _plain(error, answer)


def _plain(error: BaseException, answer: str) -> Exception:
    return ValueError(f"comparing with {answer!r} failed: {type(error).__name__}: {error}")


def _parse(text: str) -> list[Any]:
    # Its warnings about missing timeouts are answered by `_is_huge`.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    return require("math_verify", _PURPOSE).parse(text, parsing_timeout=None)


def _seconds() -> int | None:
    """Signals reach the main thread only; elsewhere math-verify must not set them."""
    return _SECONDS if threading.current_thread() is threading.main_thread() else None


def _is_huge(expression: Any) -> bool:
    """Whether evaluating might never end: a large exponent, factorial, or range of a sum."""
    sympy = require("sympy", _PURPOSE)
    if not isinstance(expression, sympy.Basic):
        return False
    costly = (sympy.factorial, sympy.factorial2, sympy.binomial, sympy.Sum, sympy.Product)
    for node in sympy.preorder_traversal(expression):
        if isinstance(node, sympy.Pow) and _bound(node.exp, sympy) > _LARGEST_EXPONENT:
            return True
        if isinstance(node, costly) and _bound(node, sympy) > _LARGEST_EXPONENT:
            return True
    return False


def _bound(expression: Any, sympy: Any) -> float:
    """A rough upper bound of the size of an expression, found without evaluating it."""
    try:
        if isinstance(expression, sympy.Number):
            return abs(float(expression))
        sizes = [_bound(argument, sympy) for argument in expression.args]
        if isinstance(expression, sympy.Add):
            return math.fsum(sizes)
        if isinstance(expression, sympy.Mul):
            return math.prod(sizes)
        if isinstance(expression, sympy.Pow):
            return max(1.0, sizes[0]) ** sizes[1]
        return max(sizes, default=1.0)
    except OverflowError:
        return math.inf
