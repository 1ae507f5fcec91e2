"""The vLLM engine in this process."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any

from ...models import ModelConfig, config_fields
from ...registry import ZootomyError
from ..checks import CLOSED, check_positions, check_requests
from ..config import RolloutConfig
from ..extras import import_extra
from ..streaming import in_background, in_groups
from ..transfer import Delivery, Direct, SharedMemory, TransferError
from ..types import Completion, Finished, Request, SamplingParams, Weights, whole_number
from ..weights import check_same, named_params
from . import tpu
from .arguments import Platform, apply_environment, launch
from .calls import Call, NotFiniteError, refuse_sampling
from .names import FUSED, RULES, TPU_RULES, with_user_rules
from .platform import check_accelerator, explain, find_platform
from .process import TURN, end, keep_apart, release
from .weights import (
    check_parameters,
    empty_cache,
    engine_parameters,
    laid_out,
    outgoing,
    take_weights,
    tensors,
)

DROPS_WEIGHTS = 2  # level of sleep


class VllmEngine:
    """Samples with vLLM, in this process, from weights that the trainer sends.

    vLLM starts from random weights under the policy's own config, written to a folder of its own;
    nothing is sampled before the first `update_weights`. Its arithmetic is not the trainer's, so
    `logp` differs from the trainer's in the last digits (float32) or the second (bfloat16).
    Engines of one process take turns, whichever thread calls them.

    Args:
        config: limits and settings; `config.vllm` holds vLLM's own.
        model: sizes of the policy.
        dtype: of the policy's arithmetic.
        mesh: size by axis of the rollout mesh, for parallel sizes left unset.

    Raises:
        ZootomyError: a missing package or device, a knob without effect, limits the model cannot
            keep, or whatever vLLM refuses, with the knob to turn.
    """

    def __init__(
        self,
        config: RolloutConfig,
        model: ModelConfig,
        *,
        dtype: str,
        mesh: dict[str, int] | None = None,
    ):
        check_positions(config, model.max_positions)
        self.config = config
        self.platform: Platform = find_platform()
        self._model = model
        self._rules, self._fused = with_user_rules(RULES, FUSED, config.vllm.mapping_config)
        self._tpu_rules, _ = with_user_rules(
            TPU_RULES[model.family], (), config.vllm.mapping_config
        )
        self._version = -1
        self._shapes: dict[str, tuple[int, ...]] | None = None
        self._transfer = Direct()
        self._workers: SharedMemory | None = None  # the way to workers in processes of their own
        self._accepted: Delivery | None = None
        self._stop: Event | None = None  # of the running call
        self._closing = False
        self._asleep = False
        self._calls = self._loads = 0
        plan = launch(config, model, dtype=dtype, platform=self.platform, mesh=mesh)
        apply_environment(plan.environment)
        if plan.arguments["tensor_parallel_size"] > 1 and not self._by_jax:
            self._workers = SharedMemory(config.transfer)
        self._folder = tempfile.TemporaryDirectory(prefix="zootomy-vllm-")
        self._llm: Any = self._start(plan.arguments)

    def _start(self, arguments: dict[str, Any]) -> Any:
        fields = config_fields(self._model, arguments["dtype"])
        own = Path(self._folder.name)
        (own / "config.json").write_text(json.dumps(fields), encoding="utf-8")
        check_accelerator(self.platform)
        try:
            vllm = import_extra("vllm")
            with TURN:
                llm = vllm.LLM(model=self.config.vllm.model or str(own), **arguments)
            keep_apart(llm)
            return llm
        except ZootomyError:
            raise
        except Exception as error:
            raise explain(error, "starting") from error

    @property
    def version(self) -> int:
        """The version of the weights that sample; -1 before any were given."""
        return self._version

    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams, seed: int | None = None
    ) -> list[list[Completion]]:
        """Complete every request; see `RolloutEngine`.

        After `abort`, completions that have not ended come back as far as they are.

        Raises:
            ZootomyError: a wrong prompt or setting, no weights yet, or a failure inside vLLM.
        """
        return in_groups(self._finished(requests, sampling, seed, Event()), requests)

    def stream(
        self, requests: Sequence[Request], sampling: SamplingParams, seed: int | None = None
    ) -> Iterator[Finished]:
        """Hand the completions of `generate` out as they end; see `StreamingEngine`.

        vLLM works on in a thread of its own; what nobody looks at any more is dropped.
        """
        stop = Event()
        return in_background([self._finished(requests, sampling, seed, stop)], stop.set)

    def _finished(
        self, requests: Sequence[Request], sampling: SamplingParams, seed: int | None, stop: Event
    ) -> Iterator[Finished]:
        """One call, with vLLM to itself."""
        with TURN:
            self._refuse_closed()
            prompts = check_requests(requests, sampling, self.config, self._model.vocab_size)
            refuse_sampling(sampling)
            if self._version < 0:
                raise ZootomyError("the vllm engine has no weights yet; call update_weights first")
            self._calls += 1
            self._stop = stop
            self._wake()
            call = Call(
                self._llm.llm_engine,
                str(self._calls),
                prompts,
                [request.n for request in requests],
                sampling=sampling,
                seed=seed,
                version=self._version,
                stop=stop,
            )
            try:
                for one in call.finished():
                    if self._closing:
                        raise ZootomyError(CLOSED)
                    yield one
            except NotFiniteError:
                # A row masks what is not its own by a weight of 0, and 0 * NaN is NaN: without
                # this, blocks of the cache would spoil whatever comes after, right weights too.
                self._llm.collective_rpc(empty_cache)
                raise
            finally:
                self._stop = None
                self._sleep()

    def _sleep(self) -> None:
        """Give memory up until the next call or update, if that is wished."""
        if self.config.vllm.sleep:
            self._llm.sleep(level=self.config.vllm.sleep)
            self._asleep = True

    def _wake(self, *, weights: bool = True) -> None:
        """Take the memory back; where weights were dropped, load them again unless others come."""
        if not self._asleep:
            return
        self._llm.wake_up()
        self._asleep = False
        if weights and self.config.vllm.sleep == DROPS_WEIGHTS:
            self._load(self._accepted_weights())

    def abort(self) -> None:
        """End the running call of another thread; its completions come back as they are."""
        stop = self._stop
        if stop is not None:
            stop.set()

    def update_weights(self, weights: Weights, version: int) -> None:
        """Sample from these weights from now on; see `RolloutEngine`.

        It waits for a running `generate`, whose completions are of the old version throughout. If
        vLLM fails half-way, the old weights are put back.

        Raises:
            ZootomyError: weights of another structure.
            TransferError: a failure inside vLLM; the engine goes on with its old weights.
        """
        version = whole_number("version", version, 0, "an integer >= 0")
        named = named_params(weights)
        with TURN:
            self._refuse_closed()
            if self._shapes is None:
                self._check_first(named)
                self._shapes = {path: tuple(x.shape) for path, x in named.items()}
            check_same(named, self._shapes)
            delivery = self._transfer.send(named, version)
            try:
                self._wake(weights=False)
                self._load(self._transfer.receive(delivery).arrays)
            except Exception as error:
                self._put_back(error, version)
            self._transfer.accepted(delivery)
            self._accepted = delivery
            self._version = version

    def _check_first(self, named: Mapping[str, Any]) -> None:
        """Refuse a policy whose parameters are not vLLM's; on a TPU every exchange checks."""
        if not self._by_jax:
            held = self._llm.apply_model(engine_parameters)[0]
            check_parameters(named, held, self._rules, self._fused)

    @property
    def _by_jax(self) -> bool:
        """Whether vLLM's model is one of tpu-inference's own, in JAX."""
        return self.platform == "tpu" and self.config.vllm.tpu_backend != "torch"

    def _load(self, named: Mapping[str, Any]) -> None:
        """Copy weights in and forget what was computed with older ones."""
        if self._by_jax:
            tpu.update(self._llm, named, self._model, self._tpu_rules)
            return
        parts = outgoing(named, self._model, self._rules)
        if self._workers is None:
            self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": tensors(parts)})
        else:
            self._loads += 1
            delivery = self._workers.send(laid_out(parts), self._loads)
            self._llm.collective_rpc(take_weights, args=(delivery, self.config.transfer))
            self._workers.accepted(delivery)
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("the prefix cache is in use and was not emptied")

    def _put_back(self, error: Exception, version: int) -> None:
        if self._accepted is None:
            self.close()
            raise explain(error, f"taking its first weights (version {version})") from error
        try:
            self._load(self._accepted_weights())
        except Exception as second:
            self.close()
            raise explain(second, "going back to its old weights") from error
        self._transfer.accepted(self._accepted)
        raise TransferError(
            f"vLLM failed while taking weights of version {version} ({type(error).__name__}: "
            f"{error}); it goes on with version {self._version}. Send them again."
        ) from error

    def _accepted_weights(self) -> Mapping[str, Any]:
        """Those that sample; they stay as they are until others have taken their place."""
        assert self._accepted is not None
        return self._transfer.receive(self._accepted).arrays

    def _refuse_closed(self) -> None:
        if self._llm is None or self._closing:
            raise ZootomyError(CLOSED)

    def close(self) -> None:
        """Let go of vLLM and its memory; a running call of another thread ends in an error."""
        self._closing = True
        self.abort()
        with TURN:
            if self._llm is None:
                return
            llm, self._llm = self._llm, None
            self._transfer.close()
            if self._workers is not None:
                self._workers.close()
            end(llm)
            del llm
            release()
            self._folder.cleanup()
