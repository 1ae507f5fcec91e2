"""What goes into a rollout engine and what comes out, and the protocol every engine keeps."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from flax import nnx

from ..registry import ZootomyError

StopReason = Literal["stop", "length", "env", "abort", "error"]
"""Why a completion ended: its stop token, the length limit, the environment, an abort, a fault."""

Weights: TypeAlias = "nnx.State | nnx.Module | Mapping[str, Any]"
"""A model, its state, or arrays: by dotted path (`layers.0.mlp.up.kernel`), or in nested dicts."""

MIN_TEMPERATURE = 1e-6  # below it, a float32 logit divided by the temperature overflows


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How tokens are drawn: temperature, then top-k, then top-p, then min-p.

    Attributes:
        temperature: divides the logits; 0 is greedy.
        top_p: keep the smallest set of most likely tokens whose mass (of what top-k left,
            renormalised) is at least `top_p`; in (0, 1], 1 keeps all.
        top_k: keep the k most likely tokens; None keeps all.
        min_p: keep the tokens at least `min_p` times as likely as the most likely one; in [0, 1].
        max_new_tokens: longest completion, in tokens, the stop token included.
        stop_ids: any of these token ids ends a completion and is its last token.

    Raises:
        ZootomyError: a value outside its range, or truncation of a greedy choice.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    max_new_tokens: int
    stop_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        temperature = _number("temperature", self.temperature, "a number >= 0 (0 is greedy)")
        if temperature < 0:
            raise _wrong("temperature", self.temperature, "a number >= 0 (0 is greedy)")
        if 0 < temperature < MIN_TEMPERATURE:
            raise ZootomyError(
                f"temperature is {self.temperature!r}, too small for float32 logits: use 0 for "
                f"greedy, or at least {MIN_TEMPERATURE}"
            )
        if not 0 < _number("top_p", self.top_p, "a number in (0, 1], 1 keeps all") <= 1:
            raise _wrong("top_p", self.top_p, "a number in (0, 1], 1 keeps all")
        if not 0 <= _number("min_p", self.min_p, "a number in [0, 1], 0 keeps all") <= 1:
            raise _wrong("min_p", self.min_p, "a number in [0, 1], 0 keeps all")
        if self.top_k is not None:
            whole_number("top_k", self.top_k, 1, "an integer >= 1, or None to keep all")
        whole_number("max_new_tokens", self.max_new_tokens, 1, "an integer >= 1")
        if isinstance(self.stop_ids, str) or not isinstance(self.stop_ids, Sequence):
            raise _wrong("stop_ids", self.stop_ids, "a tuple of token ids")
        for i, stop in enumerate(self.stop_ids):
            whole_number(f"stop_ids[{i}]", stop, 0, "a token id >= 0")
        if self.greedy and (self.truncated or self.min_p > 0):
            raise ZootomyError(
                "temperature is 0 (greedy), so top_p, top_k and min_p have no effect, but got "
                f"top_p={self.top_p}, top_k={self.top_k}, min_p={self.min_p}; leave them at "
                "1.0, None and 0.0"
            )

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken, without noise."""
        return self.temperature == 0

    @property
    def truncated(self) -> bool:
        """Whether top-p or top-k is on, which needs the order of the tokens."""
        return self.top_p < 1 or self.top_k is not None

    @property
    def full_distribution(self) -> bool:
        """Whether every token can be drawn, so that the trainer's logp is that of the sampler."""
        return not self.truncated and self.min_p == 0


@dataclass(frozen=True)
class Request:
    """One prompt, and how many completions of it are wanted.

    Attributes:
        prompt: token ids, at least one.
        n: completions, at least one; the prompt is read once for all of them.

    Raises:
        ZootomyError: if n < 1.
    """

    prompt: tuple[int, ...]
    n: int = 1

    def __post_init__(self) -> None:
        whole_number("Request.n", self.n, 1, "an integer >= 1")


@dataclass(frozen=True, eq=False)
class Completion:
    """What the engine sampled after a prompt: every token is an action.

    Attributes:
        tokens: `[T]` int32, T >= 1 unless aborted before; the stop token, where there is one, is
            the last.
        logp: `[T]` float32, natural log-probability of each token under the distribution it was
            drawn from (temperature and truncation included); greedy: that at temperature 1. NaN
            from an engine that reports none.
        stop_reason: why it ended.
        version: of the weights that sampled it.
        turns: `[T]` int, the turn of each token, which advantages by turn and rewards a turn read
            (for some of them the id of the state in which the turn began); None: a single turn.
    """

    tokens: np.ndarray
    logp: np.ndarray
    stop_reason: StopReason
    version: int
    turns: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.tokens.ndim != 1 or self.tokens.shape != self.logp.shape:
            raise ZootomyError(
                "a completion has one logp per token, got tokens of shape "
                f"{self.tokens.shape} and logp of shape {self.logp.shape}"
            )
        if self.turns is None:
            return
        if self.turns.shape != self.tokens.shape or self.turns.dtype.kind not in "iu":
            raise ZootomyError(
                "a completion's turns are one integer per token, got turns of shape "
                f"{self.turns.shape} and type {self.turns.dtype} for {len(self.tokens)} tokens"
            )

    @property
    def turn_ids(self) -> np.ndarray:
        """`[T]` int32 turns; 0 where none are given."""
        none = np.zeros(len(self.tokens), np.int32)
        return none if self.turns is None else self.turns.astype(np.int32)


class Finished(NamedTuple):
    """A completion that has ended while others may go on.

    Attributes:
        request: index of its request in the call.
        index: which of the request's completions it is.
        completion: what was sampled.
    """

    request: int
    index: int
    completion: Completion


@runtime_checkable
class RolloutEngine(Protocol):
    """Samples completions from the newest weights it was given."""

    @property
    def version(self) -> int:
        """The version of the weights that sample."""
        ...

    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams, seed: int | None = None
    ) -> list[list[Completion]]:
        """Complete every request.

        Args:
            requests: prompts as token ids, each with its number of completions.
            sampling: how tokens are drawn.
            seed: the same seed gives the same completions; None gives fresh noise each call.

        Returns:
            One list of `n` completions a request, in the order of the requests.

        Raises:
            ZootomyError: a prompt that is empty, too long or not of this vocabulary.
        """
        ...

    def update_weights(self, weights: Weights, version: int) -> None:
        """Sample from these weights from now on; nothing computed with older ones is kept."""
        ...

    def close(self) -> None:
        """Let go of the weights; the engine cannot be used afterwards."""
        ...


@runtime_checkable
class Abortable(Protocol):
    """An engine whose running call can be ended from another thread."""

    def abort(self) -> None:
        """Let the running `generate` return what there is, with stop reason `abort`."""
        ...


@runtime_checkable
class StreamingEngine(RolloutEngine, Protocol):
    """An engine that hands completions out as they end."""

    def stream(
        self, requests: Sequence[Request], sampling: SamplingParams, seed: int | None = None
    ) -> Iterator[Finished]:
        """What `generate` gives, each completion once, in the order in which they end.

        The engine goes on sampling while the caller looks at a completion.
        """
        ...


def whole_number(name: str, value: object, least: int, expected: str) -> int:
    """`value` as an int of at least `least`, or the error that names it."""
    if isinstance(value, bool):
        raise _wrong(name, value, expected)
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise _wrong(name, value, expected) from None
    if number < least:
        raise _wrong(name, value, expected)
    return number


def _number(name: str, value: object, expected: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise _wrong(name, value, expected)
    if not math.isfinite(value):
        raise _wrong(name, value, expected)
    return float(value)


def _wrong(name: str, value: object, expected: str) -> ZootomyError:
    return ZootomyError(f"{name} is {value!r}; expected {expected}")
