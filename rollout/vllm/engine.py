"""The vLLM engine in this process."""

from __future__ import annotations

import contextlib
import importlib
import json
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...models import ModelConfig, config_fields
from ...registry import ZootomyError
from ..checks import CLOSED, STOP_REASONS, check_positions, check_requests, completion_seed
from ..config import RolloutConfig
from ..extras import import_extra
from ..transfer.types import TransferError
from ..types import Completion, Request, SamplingParams, Weights, whole_number
from ..weights import check_same, named_params
from . import tpu
from .arguments import MIN_TEMPERATURE, Platform, apply_environment, launch
from .names import FUSED, RULES, TPU_RULES, with_user_rules
from .platform import check_accelerator, explain, find_platform
from .weights import (
    check_parameters,
    empty_cache,
    engine_parameters,
    outgoing,
    tensors,
)


class VllmEngine:
    """Samples with vLLM, in this process, from weights that the trainer sends.

    vLLM starts from random weights under the policy's own config, written to a folder of its own;
    nothing is sampled before the first `update_weights`. Its arithmetic is not the trainer's, so
    `logp` differs from the trainer's in the last digits (float32) or the second (bfloat16).

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
        self._loaded: Mapping[str, Any] = {}
        self._turn = threading.RLock()
        self._abort = threading.Event()
        self._calls = 0
        plan = launch(config, model, dtype=dtype, platform=self.platform, mesh=mesh)
        apply_environment(plan.environment)
        self._folder = tempfile.TemporaryDirectory(prefix="zootomy-vllm-")
        self._llm: Any = self._start(plan.arguments)

    def _start(self, arguments: dict[str, Any]) -> Any:
        fields = config_fields(self._model, arguments["dtype"])
        own = Path(self._folder.name)
        (own / "config.json").write_text(json.dumps(fields), encoding="utf-8")
        check_accelerator(self.platform)
        try:
            vllm = import_extra("vllm")
            return vllm.LLM(model=self.config.vllm.model or str(own), **arguments)
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
        with self._turn:
            self._abort.clear()
            prompts = check_requests(requests, sampling, self.config, self._model.vocab_size)
            _refuse_sampling(sampling)
            if self._llm is None:
                raise ZootomyError(CLOSED)
            if self._version < 0:
                raise ZootomyError("the vllm engine has no weights yet; call update_weights first")
            self._calls += 1
            rows = [(i, j) for i, request in enumerate(requests) for j in range(request.n)]
            ids = {f"{self._calls}-{i}-{j}": (i, j) for i, j in rows}
            try:
                grown = self._run(ids, prompts, sampling, seed)
            except ZootomyError:
                raise
            except Exception as error:
                with contextlib.suppress(Exception):  # the first error is the one to tell
                    self._drop(list(ids))
                raise explain(error, "sampling") from error
            return [
                [self._completion(grown[f"{self._calls}-{i}-{j}"], i, j) for j in range(request.n)]
                for i, request in enumerate(requests)
            ]

    def _run(
        self,
        ids: Mapping[str, tuple[int, int]],
        prompts: Sequence[tuple[int, ...]],
        sampling: SamplingParams,
        seed: int | None,
    ) -> dict[str, _Grown]:
        engine = self._llm.llm_engine
        grown = {name: _Grown() for name in ids}
        for name, (i, j) in ids.items():
            engine.add_request(
                name,
                {"prompt_token_ids": list(prompts[i])},
                _parameters(sampling, None if seed is None else completion_seed(seed, i, j)),
            )
        while engine.has_unfinished_requests():
            for output in engine.step():
                grown[output.request_id].add(output.outputs[0])
            if self._abort.is_set():
                self._drop([name for name, one in grown.items() if one.reason is None])
                break
        return grown

    def _drop(self, names: list[str]) -> None:
        """Take requests out of vLLM's queues."""
        engine = self._llm.llm_engine
        engine.abort_request(names)
        if engine.has_unfinished_requests():
            engine.step()

    def _completion(self, grown: _Grown, request: int, completion: int) -> Completion:
        logp = np.asarray(grown.logp, np.float32)
        if not np.isfinite(logp).all():
            # A row masks what is not its own by a weight of 0, and 0 * NaN is NaN: without this,
            # blocks of the cache would spoil whatever comes after, right weights included.
            self._llm.collective_rpc(empty_cache)
            wrong = int(np.flatnonzero(~np.isfinite(logp))[0])
            raise ZootomyError(
                f"vllm (weights version {self._version}) gave a logp of {logp[wrong]} for request "
                f"{request}, completion {completion}, token {wrong}; the weights are likely not "
                "finite"
            )
        return Completion(
            tokens=np.asarray(grown.tokens, np.int32),
            logp=logp,
            stop_reason=STOP_REASONS[grown.reason or "abort"],
            version=self._version,
        )

    def abort(self) -> None:
        """End the running `generate` of another thread; its completions come back as they are."""
        self._abort.set()

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
        with self._turn:
            if self._llm is None:
                raise ZootomyError(CLOSED)
            if self._shapes is None:
                self._check_first(named)
                self._shapes = {path: tuple(x.shape) for path, x in named.items()}
            check_same(named, self._shapes)
            try:
                self._load(named)
            except Exception as error:
                self._put_back(error, version)
            self._loaded = named
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
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": tensors(parts)})
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("the prefix cache is in use and was not emptied")

    def _put_back(self, error: Exception, version: int) -> None:
        if not self._loaded:
            self.close()
            raise explain(error, f"taking its first weights (version {version})") from error
        try:
            self._load(self._loaded)
        except Exception as second:
            self.close()
            raise explain(second, "going back to its old weights") from error
        raise TransferError(
            f"vLLM failed while taking weights of version {version} ({type(error).__name__}: "
            f"{error}); it goes on with version {self._version}. Send them again."
        ) from error

    def close(self) -> None:
        """Let go of vLLM and its memory."""
        with self._turn:
            if self._llm is None:
                return
            llm, self._llm = self._llm, None
            self._loaded = {}
            llm.llm_engine.engine_core.shutdown()
            self._folder.cleanup()


class _Grown:
    """A completion as far as it is."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logp: list[float] = []
        self.reason: str | None = None

    def add(self, output: Any) -> None:
        """The tokens of one step."""
        self.tokens.extend(output.token_ids)
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


def _refuse_sampling(sampling: SamplingParams) -> None:
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
