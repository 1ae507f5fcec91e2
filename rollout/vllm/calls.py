"""One call of vLLM: requests in, completions out as they end."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...registry import ZootomyError
from ..checks import STOP_REASONS, completion_seed
from ..types import Completion, Finished, SamplingParams
from .arguments import MIN_TEMPERATURE
from .platform import explain


class Call:
    """The completions of one call, from the first prompt read to the last token.

    Args:
        engine: vLLM's, which is stepped in this process.
        name: of the call, unlike any other's.
        prompts: token ids.
        counts: completions of each prompt.
        sampling: how tokens are drawn.
        seed: of the noise; None for vLLM's own.
        version: of the weights.
        stop: ends the call where it is.
    """

    def __init__(
        self,
        engine: Any,
        name: str,
        prompts: Sequence[Sequence[int]],
        counts: Sequence[int],
        *,
        sampling: SamplingParams,
        seed: int | None,
        version: int,
        stop: threading.Event,
    ):
        self._engine = engine
        self._prompts = prompts
        self._sampling = sampling
        self._seed = seed
        self._version = version
        self._stop = stop
        self._places = {
            f"{name}-{i}-{j}": (i, j) for i, count in enumerate(counts) for j in range(count)
        }
        self._growing = {key: _Grown() for key in self._places}

    def finished(self) -> Iterator[Finished]:
        """Each completion once, as it ends; after `stop` the others as far as they are.

        Raises:
            ZootomyError: a failure inside vLLM, or a logp that is not finite. Nothing of the call
                is left in vLLM then, nor where the caller looks no further.
        """
        try:
            yield from self._finished()
        except BaseException as error:
            with contextlib.suppress(Exception):  # the first error is the one to tell
                self._drop()
            if isinstance(error, Exception) and not isinstance(error, ZootomyError):
                raise explain(error, "sampling") from error
            raise

    def _finished(self) -> Iterator[Finished]:
        for key, (i, j) in self._places.items():
            seed = None if self._seed is None else completion_seed(self._seed, i, j)
            prompt = {"prompt_token_ids": list(self._prompts[i])}
            self._engine.add_request(key, prompt, _parameters(self._sampling, seed))
        while self._growing:
            if self._stop.is_set():
                self._drop()
                for key in list(self._growing):
                    yield self._end(key)
                return
            for output in self._engine.step():
                one = self._growing[output.request_id]
                one.add(output.outputs[0])
                if one.reason is not None:
                    yield self._end(output.request_id)

    def _drop(self) -> None:
        """Take what has not ended out of vLLM's queues."""
        self._engine.abort_request(list(self._growing))
        if self._engine.has_unfinished_requests():
            self._engine.step()

    def _end(self, key: str) -> Finished:
        grown = self._growing.pop(key)
        i, j = self._places[key]
        logp = np.asarray(grown.logp, np.float32)
        wrong = np.flatnonzero(~np.isfinite(logp))
        if wrong.size:
            raise NotFiniteError(
                f"vllm (weights version {self._version}) gave a logp of {logp[wrong[0]]} for "
                f"request {i}, completion {j}, token {wrong[0]}; the weights are likely not finite"
            )
        completion = Completion(
            tokens=np.asarray(grown.tokens, np.int32),
            logp=logp,
            stop_reason=STOP_REASONS[grown.reason or "abort"],
            version=self._version,
        )
        return Finished(i, j, completion)


class NotFiniteError(ZootomyError):
    """A log-probability that is no number: what was cached meanwhile may be none either."""


class _Grown:
    """A completion as far as it is."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logp: list[float] = []
        self.reason: str | None = None

    def add(self, output: Any) -> None:
        """The tokens of one step."""
        self.tokens.extend(output.token_ids)
        entries: Mapping[int, Any]
        for token, entries in zip(output.token_ids, output.logprobs or (), strict=True):
            self.logp.append(entries[token].logprob)
        self.reason = output.finish_reason


def _parameters(sampling: SamplingParams, seed: int | None) -> Any:
    vllm = importlib.import_module("vllm")
    kinds = importlib.import_module("vllm.sampling_params").RequestOutputKind
    return vllm.SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k or 0,
        min_p=sampling.min_p,
        max_tokens=sampling.max_new_tokens,
        stop_token_ids=list(sampling.stop_ids),
        # The stop ids of the call alone count, not those of a generation config.
        ignore_eos=True,
        seed=seed,
        logprobs=0,
        detokenize=False,
        output_kind=kinds.DELTA,
    )


def refuse_sampling(sampling: SamplingParams) -> None:
    """What vLLM would change or do otherwise without a word."""
    if 0 < sampling.temperature < MIN_TEMPERATURE:
        raise ZootomyError(
            f"temperature is {sampling.temperature}; vllm would raise it to {MIN_TEMPERATURE}. "
            "Use 0 for greedy, or at least that"
        )
    if sampling.min_p > 0 and sampling.top_p < 1:
        raise ZootomyError(
            f"top_p={sampling.top_p} and min_p={sampling.min_p}: vllm applies min_p first, the "
            "vanilla engine last, which gives other tokens. Use one of them"
        )
