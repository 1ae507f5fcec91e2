"""The knobs of the vLLM engine, under our names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from ...registry import ZootomyError
from ..knobs import LoadFormat, choice, load_format, mapping, seconds, share, whole

VllmDtype = Literal["model", "float32", "bfloat16", "float16"]
TpuBackend = Literal["auto", "jax", "torch"]


@dataclass(frozen=True, kw_only=True)
class VllmConfig:
    """What only vLLM has; temperature, lengths, slots and seed are `RolloutConfig`'s.

    Attributes:
        model: a Hugging Face folder whose config vLLM reads; empty: written from the policy's own.
        dtype: of vLLM's weights and arithmetic; `"model"`: the policy's.
        load_format: `"dummy"` starts with random weights, `"auto"` reads those of `model`; either
            way the trainer's weights replace them before the first token.
        max_model_len: tokens of prompt and completion; None: the sum of both limits.
        max_num_seqs: completions that grow at the same time; None: `rollout.max_slots`.
        max_num_batched_tokens: tokens of one forward pass; None: vLLM's choice.
        memory_utilisation: share of the device's memory (HBM; RAM on a CPU) that vLLM may fill;
            None: vLLM's choice, and on a CPU `kv_cache_mib` decides. Not beside `kv_cache_mib`,
            which vLLM puts in its place.
        kv_cache_mib: MiB of keys and values; None: what `memory_utilisation` leaves, on a CPU
            what `max_num_seqs` completions of full length need.
        swap_space_gib: no vLLM from 0.32 on swaps; other values than 0 are refused.
        enforce_eager: no graphs and no compilation by torch; starts faster, runs slower on a GPU.
        prefix_caching: keep the keys and values of prompts, so that a group reads its prompt
            once; emptied at every weight update.
        async_scheduling: schedule the next step while the device works; refused on a CPU.
        tensor_parallel: devices that share a layer; None: from the rollout mesh, else 1.
        data_parallel: copies of the model; None: from the rollout mesh, else 1. On TPUs only:
            elsewhere vLLM keeps one copy a process.
        hf_config_path: a folder whose `config.json` is read instead of that of `model`.
        hf_overrides: fields of `config.json` to replace.
        additional_config: passed on to the platform's plug-in (tpu-inference reads `sharding`,
            for instance); refused where none reads it.
        mapping_config: names that differ: `rename` (pattern -> name) and `fused` (module ->
            list of parts), beside the built-in ones.
        server_mode: run vLLM in a process of its own; weights go through shared memory.
        tpu_backend: implementation of the model on a TPU; refused elsewhere.
        sleep: give up memory between rollouts, 0 never, 1 weights to host memory and the cache
            dropped, 2 both dropped and the trainer's taken again; on GPUs only.
        start_timeout: seconds a server may take to start; without `server_mode` refused.
        engine_arguments: any other argument of vLLM's `LLM`, by its own name.

    Raises:
        ZootomyError: for a value out of range.
    """

    model: str = ""
    dtype: VllmDtype = "model"
    load_format: LoadFormat = "dummy"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    memory_utilisation: float | None = None
    kv_cache_mib: int | None = None
    swap_space_gib: float = 0.0
    enforce_eager: bool = True
    prefix_caching: bool = True
    async_scheduling: bool | None = None
    tensor_parallel: int | None = None
    data_parallel: int | None = None
    hf_config_path: str = ""
    hf_overrides: Mapping[str, Any] = field(default_factory=dict)
    additional_config: Mapping[str, Any] = field(default_factory=dict)
    mapping_config: Mapping[str, Any] = field(default_factory=dict)
    server_mode: bool = False
    tpu_backend: TpuBackend = "auto"
    sleep: int = 0
    start_timeout: float = 600.0
    engine_arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        at = "rollout.vllm."
        choice(f"{at}dtype", self.dtype, get_args(VllmDtype))
        load_format(at, self.load_format, self.model)
        choice(f"{at}tpu_backend", self.tpu_backend, get_args(TpuBackend))
        for name in (
            "max_model_len", "max_num_seqs", "max_num_batched_tokens", "kv_cache_mib",
            "tensor_parallel", "data_parallel",
        ):  # fmt: skip
            whole(at + name, vars(self)[name], 1)
        share(f"{at}memory_utilisation", self.memory_utilisation)
        for name in ("hf_overrides", "additional_config", "mapping_config", "engine_arguments"):
            mapping(at + name, vars(self)[name])
        if self.sleep not in (0, 1, 2) or isinstance(self.sleep, bool):
            raise ZootomyError(f"{at}sleep is {self.sleep!r}; expected 0, 1 or 2")
        if self.swap_space_gib != 0:
            raise ZootomyError(
                f"{at}swap_space_gib is {self.swap_space_gib!r}: vLLM 0.32 preempts by computing "
                "again and swaps nothing. Leave it 0; raise memory_utilisation or kv_cache_mib, "
                "or lower max_num_seqs"
            )
        seconds(f"{at}start_timeout", self.start_timeout)
        if self.start_timeout != type(self).start_timeout and not self.server_mode:
            raise ZootomyError(
                f"{at}start_timeout is {self.start_timeout:g}, which bounds the start of a server, "
                "and server_mode is False; leave it out, or set server_mode True"
            )
        if self.memory_utilisation is not None and self.kv_cache_mib is not None:
            raise ZootomyError(
                f"{at}kv_cache_mib is {self.kv_cache_mib} and {at}memory_utilisation "
                f"{self.memory_utilisation}: vLLM would ignore the second; set one of them"
            )
        unknown = self.mapping_config.keys() - {"rename", "fused"}
        if unknown:
            raise ZootomyError(
                f"{at}mapping_config has {sorted(unknown)[0]!r}; expected 'rename' and 'fused'"
            )
