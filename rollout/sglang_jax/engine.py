"""The SGLang-JAX engine; it runs in the child process of a `RemoteEngine`.

A fault of its scheduler ends the process it runs in, and its weights are set from within that
process: both are reasons for a child. Tried where it is installed only (Python 3.12).
"""

from __future__ import annotations

import importlib
import json
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ...models import ModelConfig, config_fields
from ...registry import ZootomyError
from ..checks import (
    CLOSED,
    OWN_NOISE,
    SEED,
    STOP_REASONS,
    check_positions,
    check_requests,
    completion_seed,
)
from ..config import RolloutConfig
from ..extras import import_extra
from ..transfer import TransferError
from ..types import Completion, Request, SamplingParams, Weights, whole_number
from ..weights import check_same, named_params
from .arguments import engine_arguments, sampling_arguments
from .names import engine_arrays

SEED_BITS = 31  # its sampling seeds are int32


class SglangJaxEngine:
    """Samples with SGLang-JAX, in this process, from weights that the trainer sends.

    A call's seed counts only with `deterministic_sampling`; see there why it is off.

    Args:
        config: limits and settings; `config.sglang_jax` holds its own.
        model: sizes of the policy.
        dtype: of the policy's arithmetic.
        mesh: size by axis of the rollout mesh, for parallel sizes left unset.

    Raises:
        ZootomyError: a missing package, a knob without effect, or whatever the engine refuses.
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
        self._model = model
        self._version = -1
        self._shapes: dict[str, tuple[int, ...]] | None = None
        self._calls = 0
        self._turn = threading.RLock()
        device = jax.default_backend()
        arguments = engine_arguments(config, model, dtype=dtype, device=device, mesh=mesh)
        self._folder = tempfile.TemporaryDirectory(prefix="zootomy-sglang-")
        own = Path(self._folder.name)
        fields = with_old_rope_fields(config_fields(model, arguments["dtype"]))
        (own / "config.json").write_text(json.dumps(fields), encoding="utf-8")
        import_extra("sgl_jax")
        try:
            entry = importlib.import_module("sgl_jax.srt.entrypoints.engine")
            self._engine: Any = entry.Engine(
                model_path=config.sglang_jax.model or str(own), **arguments
            )
        except Exception as error:
            raise ZootomyError(
                f"sglang_jax failed while starting ({type(error).__name__}): {error} | If memory "
                "is short: lower rollout.sglang_jax.memory_fraction, rollout.max_slots or "
                "rollout.max_new_tokens"
            ) from error

        # The stop ids of a call alone count, not those of a config.
        self._scheduler.model_config.hf_eos_token_id = None

    @property
    def _scheduler(self) -> Any:
        return self._engine.scheduler_info["scheduler"]

    @property
    def version(self) -> int:
        """The version of the weights that sample; -1 before any were given."""
        return self._version

    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams, seed: int | None = None
    ) -> list[list[Completion]]:
        """Complete every request; see `RolloutEngine`."""
        with self._turn:
            if self._engine is None:
                raise ZootomyError(CLOSED)
            prompts = check_requests(requests, sampling, self.config, self._model.vocab_size)
            if self._version < 0:
                raise ZootomyError("the engine has no weights yet; call update_weights first")
            logprobs = self.config.sglang_jax.logprobs
            rows = [(i, j) for i, request in enumerate(requests) for j in range(request.n)]
            if not rows:
                return [[] for _ in requests]
            seeds = self._seeds(rows, seed)
            outputs = self._engine.generate(
                input_ids=[list(prompts[i]) for i, _ in rows],
                sampling_params=[
                    sampling_arguments(sampling, one, logprobs=logprobs) for one in seeds
                ],
                return_logprob=logprobs,
            )
            found: list[list[Completion]] = [[] for _ in requests]
            limit = sampling.max_new_tokens
            try:
                for (i, _), output in zip(rows, outputs, strict=True):
                    found[i].append(
                        read_output(output, self._version, logprobs=logprobs, limit=limit)
                    )
            except NotFiniteError:
                # What is not a row's own has a weight of 0, and 0 * NaN is NaN: the cache would
                # spoil whatever comes after, right weights too.
                empty(self._scheduler.tp_worker.worker.model_runner.token_to_kv_pool.kv_buffer)
                raise
            return found

    def _seeds(self, rows: Sequence[tuple[int, int]], seed: int | None) -> list[int | None]:
        """A seed for each row; None for all where its sampling is not deterministic.

        Deterministic sampling repeats its noise where it is given no seed, so it gets one.
        """
        if seed is not None:
            whole_number("seed", seed, 0, SEED)
        if not self.config.sglang_jax.deterministic_sampling:
            return [None] * len(rows)
        self._calls += 1
        base = [self.config.seed, OWN_NOISE, self._calls] if seed is None else seed
        return [completion_seed(base, i, j) & ((1 << SEED_BITS) - 1) for i, j in rows]

    def abort(self) -> None:
        """End the running `generate` of another thread; its completions come back as they are."""
        engine = self._engine
        if engine is not None:
            # Its sockets belong to the loop, which runs in the thread of `generate`.
            engine.loop.call_soon_threadsafe(
                lambda: engine.tokenizer_manager.abort_request(abort_all=True)
            )

    def update_weights(self, weights: Weights, version: int) -> None:
        """Sample from these weights from now on; see `RolloutEngine`.

        All arrays are made to fit before the first is exchanged, in one assignment.

        Raises:
            ZootomyError: weights of another structure.
            TransferError: a cache that cannot be emptied; the engine goes on with its old weights.
        """
        version = whole_number("version", version, 0, "an integer >= 0")
        named = named_params(weights)
        with self._turn:
            if self._engine is None:
                raise ZootomyError(CLOSED)
            if self._shapes is None:
                self._shapes = {path: tuple(x.shape) for path, x in named.items()}
            check_same(named, self._shapes)
            runner = self._scheduler.tp_worker.worker.model_runner
            leaves = new_leaves(
                nnx.split(runner.model)[1], runner.model_state_leaves, named, self._model
            )
            answer = self._engine.flush_cache()
            if not answer.success:
                raise TransferError(
                    f"sglang_jax did not empty its cache for weights of version {version} "
                    f"({answer.error_msg}); it goes on with version {self._version}. Send them "
                    "again."
                )
            runner.model_state_leaves = leaves
            self._version = version

    def close(self) -> None:
        """End the engine."""
        with self._turn:
            if self._engine is not None:
                self._engine, engine = None, self._engine
                self._folder.cleanup()
                engine.shutdown()


class NotFiniteError(ZootomyError):
    """A log-probability that is no number: what was cached meanwhile may be none either."""


def empty(buffers: list[jax.Array]) -> None:
    """Zeros in keys and values, in their places."""
    buffers[:] = [jax.device_put(jnp.zeros(x.shape, x.dtype), x.sharding) for x in buffers]


def with_old_rope_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """The rotary embedding under transformers 4's names too, which SGLang-JAX reads."""
    rope = dict(fields["rope_parameters"])
    found = {**fields, "rope_theta": rope.pop("rope_theta")}
    if rope.get("rope_type", "default") != "default":
        found["rope_scaling"] = rope
    return found


def new_leaves(
    state: Any, leaves: Sequence[Any], named: Mapping[str, Any], config: ModelConfig
) -> list[Any]:
    """The runner's leaves with our weights in the place of its own.

    Args:
        state: the runner's model state, whose paths name the leaves.
        leaves: what the runner computes with, in the same order.
        named: our parameters by dotted path.
        config: sizes of the policy.

    Raises:
        ZootomyError: listing names that are missing, extra or misshapen.
    """
    names = [path_name(path) for path, _ in jax.tree_util.tree_flatten_with_path(state)[0]]
    parameters = {
        name: tuple(leaf.shape)
        for name, leaf in zip(names, leaves, strict=True)
        if name.rpartition(".")[2] in ("weight", "bias", "scale", "embedding")
    }
    given = engine_arrays(named, config, parameters)
    return [
        jax.device_put(np.asarray(given[name]).astype(leaf.dtype), leaf.sharding)
        if name in given
        else leaf
        for name, leaf in zip(names, leaves, strict=True)
    ]


def path_name(path: Sequence[Any]) -> str:
    """`model.layers.0.mlp.up_proj.weight` from a tree path."""
    parts = []
    for key in path:
        if isinstance(key, jax.tree_util.SequenceKey):
            parts.append(str(key.idx))
        elif isinstance(key, jax.tree_util.GetAttrKey):
            # NNX ends a path with the variable's value.
            if key.name != "value":
                parts.append(key.name)
        else:
            parts.append(str(key.key))
    return ".".join(parts)


def read_output(
    output: Mapping[str, Any], version: int, *, logprobs: bool, limit: int
) -> Completion:
    """A completion from what the engine says of it; NaN for log-probabilities it does not give.

    Args:
        output: its answer.
        version: of the weights.
        logprobs: whether it was asked for them.
        limit: tokens that were asked for.

    Raises:
        ZootomyError: for a completion that it cut short, or a logp that is not finite.
    """
    meta = output["meta_info"]
    if meta["finish_reason"] and meta["finish_reason"]["type"] == "abort":
        # Of a prompt that was not read yet it says nothing.
        meta = {"output_token_logprobs": [], **meta}
        output = {"output_ids": [], **output}
    tokens = np.asarray(output["output_ids"], np.int32)
    logp = np.full(len(tokens), np.nan, np.float32)
    if logprobs:
        logp = np.asarray([entry[0] for entry in meta["output_token_logprobs"]], np.float32)
        if not np.isfinite(logp).all():
            raise NotFiniteError(
                f"sglang_jax (weights version {version}) gave a logp that is not finite; the "
                "weights are likely not finite"
            )
    reason = meta["finish_reason"]["type"] if meta["finish_reason"] else "abort"
    if reason == "length" and len(tokens) < limit:
        raise ZootomyError(
            f"sglang_jax ended a completion after {len(tokens)} of {limit} tokens for want of "
            "room; raise rollout.sglang_jax.context_length or max_total_tokens"
        )
    return Completion(tokens=tokens, logp=logp, stop_reason=STOP_REASONS[reason], version=version)
