"""The knobs of the SGLang-JAX engine, under our names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from ..knobs import LoadFormat, choice, load_format, mapping, seconds, share, whole

SglangDtype = Literal["model", "float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class SglangJaxConfig:
    """What only SGLang-JAX has; temperature, lengths, slots and seed are `RolloutConfig`'s.

    Attributes:
        model: a Hugging Face folder whose config is read; empty: written from the policy's own.
        dtype: of the weights and arithmetic; `"model"`: the policy's.
        load_format: `"dummy"` starts with random weights, `"auto"` reads those of `model`; either
            way the trainer's weights replace them before the first token.
        context_length: tokens of prompt and completion; None: the sum of both limits.
        memory_fraction: share of the device's memory for weights and cache; None: its choice.
        max_total_tokens: tokens the cache holds; None: what `memory_fraction` leaves, on a CPU
            (without one) what all slots need. With both, the smaller counts.
        radix_cache: keep prefixes between calls. Off for RL: every update would empty it.
        deterministic_sampling: the same seed gives the same tokens. Off, since its seeded noise is
            a weak hash: over all seeds, tokens deviate from their probabilities by 0.12 in total
            variation on a vocabulary of 23. Without it a call's seed has no effect.
        precompile: compile for all paddings at the start, and not when first met.
        token_paddings: token counts that programs are compiled for; empty: its choice.
        batch_paddings: batch sizes that programs are compiled for; empty: its choice.
        chunked_prefill: tokens of a prompt that are read at a time; None: its choice, -1 off.
        page_size: tokens of a page of the cache.
        tensor_parallel: devices that share a layer; None: from the rollout mesh, else 1.
        data_parallel: copies of the model; None: from the rollout mesh, else 1.
        attention_backend: `"native"` anywhere, `"fa"` on TPUs; None: by the device.
        logprobs: whether the engine reports log-probabilities. Without them `rollout_logp` is
            missing, and corrections refuse.
        start_timeout: seconds it may take to start.
        engine_arguments: any other argument of its `Engine`, by its own name.

    Raises:
        ZootomyError: for a value out of range.
    """

    model: str = ""
    dtype: SglangDtype = "model"
    load_format: LoadFormat = "dummy"
    context_length: int | None = None
    memory_fraction: float | None = None
    max_total_tokens: int | None = None
    radix_cache: bool = False
    deterministic_sampling: bool = False
    precompile: bool = False
    token_paddings: tuple[int, ...] = ()
    batch_paddings: tuple[int, ...] = ()
    chunked_prefill: int | None = None
    page_size: int = 1
    tensor_parallel: int | None = None
    data_parallel: int | None = None
    attention_backend: Literal["native", "fa"] | None = None
    logprobs: bool = True
    start_timeout: float = 600.0
    engine_arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        at = "rollout.sglang_jax."
        choice(f"{at}dtype", self.dtype, get_args(SglangDtype))
        load_format(at, self.load_format, self.model)
        for name in (
            "context_length", "max_total_tokens", "page_size", "tensor_parallel", "data_parallel"
        ):  # fmt: skip
            whole(at + name, vars(self)[name], 1)
        if self.chunked_prefill != -1:
            whole(f"{at}chunked_prefill", self.chunked_prefill, 1)
        for name in ("token_paddings", "batch_paddings"):
            for i, value in enumerate(vars(self)[name]):
                whole(f"{at}{name}[{i}]", value, 1)
        seconds(f"{at}start_timeout", self.start_timeout)
        share(f"{at}memory_fraction", self.memory_fraction)
        mapping(f"{at}engine_arguments", self.engine_arguments)
