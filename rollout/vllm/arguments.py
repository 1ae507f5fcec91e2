"""From our knobs to vLLM's arguments and environment, for one platform."""

from __future__ import annotations

import os
from typing import Any, Literal, NamedTuple

from ...models import ModelConfig
from ...registry import ZootomyError
from ..config import RolloutConfig
from ..knobs import parallel, refuse_taken

Platform = Literal["cpu", "cuda", "tpu"]
MIB = 1024**2
BLOCK = 128  # tokens: the cache comes in blocks, and a completion may begin one
MIN_TEMPERATURE = 0.01  # vLLM raises a smaller one to this, without an error
CPU_HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)

# vLLM's argument -> the knob of ours that sets it.
TAKEN = {
    "model": "rollout.vllm.model",
    "dtype": "rollout.vllm.dtype",
    "load_format": "rollout.vllm.load_format",
    "max_model_len": "rollout.vllm.max_model_len",
    "max_num_seqs": "rollout.vllm.max_num_seqs",
    "max_num_batched_tokens": "rollout.vllm.max_num_batched_tokens",
    "gpu_memory_utilization": "rollout.vllm.memory_utilisation",
    "kv_cache_memory_bytes": "rollout.vllm.kv_cache_mib",
    "kv_cache_dtype": "rollout.cache_dtype",
    "enforce_eager": "rollout.vllm.enforce_eager",
    "enable_prefix_caching": "rollout.vllm.prefix_caching",
    "async_scheduling": "rollout.vllm.async_scheduling",
    "tensor_parallel_size": "rollout.vllm.tensor_parallel",
    "data_parallel_size": "rollout.vllm.data_parallel",
    "hf_config_path": "rollout.vllm.hf_config_path",
    "hf_overrides": "rollout.vllm.hf_overrides",
    "additional_config": "rollout.vllm.additional_config",
    "enable_sleep_mode": "rollout.vllm.sleep",
    "seed": "rollout.seed",
    "skip_tokenizer_init": "the engine itself (it reads and gives token ids)",
    "logprobs_mode": "the engine itself (logp is that of the distribution sampled from)",
    "generation_config": "the engine itself (sampling settings come with each call)",
    "worker_extension_cls": "the engine itself (it receives weights)",
}


class Launch(NamedTuple):
    """How vLLM is started.

    Attributes:
        arguments: of `vllm.LLM`, all but `model`.
        environment: variables to set where they are not.
    """

    arguments: dict[str, Any]
    environment: dict[str, str]


def launch(
    config: RolloutConfig,
    model: ModelConfig,
    *,
    dtype: str,
    platform: Platform,
    mesh: dict[str, int] | None = None,
) -> Launch:
    """Everything vLLM is told at its start.

    Args:
        config: the settings.
        model: sizes of the policy.
        dtype: the policy's, for `dtype="model"`.
        platform: where vLLM runs.
        mesh: size by axis of the rollout mesh, for parallel sizes left unset.

    Raises:
        ZootomyError: for a knob that has no effect on this platform, or a pass-through argument
            that a knob sets.
    """
    knobs = config.vllm
    refuse_taken("rollout.vllm.engine_arguments", knobs.engine_arguments, TAKEN)
    _refuse_without_effect(config, model, platform)
    total = config.max_prompt_tokens + config.max_new_tokens
    length = knobs.max_model_len or total
    if length < total:
        raise ZootomyError(
            f"rollout.vllm.max_model_len is {length}, below max_prompt_tokens "
            f"{config.max_prompt_tokens} + max_new_tokens {config.max_new_tokens} = {total}; "
            "raise it, or leave it None"
        )
    # On a CPU, devices of JAX are no devices of vLLM's.
    tensor, data = parallel(None if platform == "cpu" else mesh)
    tensor, data = knobs.tensor_parallel or tensor, knobs.data_parallel or data
    if data > 1 and platform != "tpu":
        where = "the rollout mesh" if knobs.data_parallel is None else "rollout.vllm.data_parallel"
        raise ZootomyError(
            f"{where} asks for {data} copies of the model, and vLLM on {platform} keeps one a "
            "process; spread it over the devices with tensor_parallel, and leave data_parallel 1"
        )
    seqs = knobs.max_num_seqs or config.max_slots
    arguments: dict[str, Any] = {
        "dtype": _dtype(config, dtype),
        "load_format": knobs.load_format,
        "max_model_len": length,
        "max_num_seqs": seqs,
        "enforce_eager": knobs.enforce_eager,
        "enable_prefix_caching": knobs.prefix_caching,
        "tensor_parallel_size": tensor,
        "data_parallel_size": data,
        "seed": config.seed,
        "skip_tokenizer_init": True,
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
    }
    optional = {
        "max_num_batched_tokens": knobs.max_num_batched_tokens,
        "gpu_memory_utilization": knobs.memory_utilisation,
        "kv_cache_memory_bytes": _cache_bytes(config, model, seqs, length, platform, dtype),
        "async_scheduling": knobs.async_scheduling,
        "hf_config_path": knobs.hf_config_path or None,
        "hf_overrides": dict(knobs.hf_overrides) or None,
        "additional_config": dict(knobs.additional_config) or None,
        "kv_cache_dtype": _cache_dtype(config, dtype, platform),
        "enable_sleep_mode": True if knobs.sleep else None,
    }
    arguments |= {name: value for name, value in optional.items() if value is not None}
    arguments |= dict(knobs.engine_arguments)
    return Launch(arguments, environment(config, platform))


def environment(config: RolloutConfig, platform: Platform) -> dict[str, str]:
    """Variables that vLLM reads when it is imported; one that is set already stays as it is."""
    found = {
        # One scheduler in this process: tokens come back in order, and weights go in directly.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }
    if platform == "cpu":
        # Binding threads to cores would bind those of the trainer in the same process as well, and
        # threads that wait spin on cores that others need: up to ten times the time of a call.
        found |= {
            "VLLM_CPU_CI_ENV": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_WAIT_POLICY": "passive",
        }
    if platform == "tpu":
        kinds = {"auto": "auto", "jax": "flax_nnx", "torch": "vllm"}
        found |= {"MODEL_IMPL_TYPE": kinds[config.vllm.tpu_backend]}
    return found


def apply_environment(variables: dict[str, str]) -> None:
    """Set what is not set yet; the user's own settings win."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def _dtype(config: RolloutConfig, dtype: str) -> str:
    return dtype if config.vllm.dtype == "model" else config.vllm.dtype


def _cache_dtype(config: RolloutConfig, dtype: str, platform: Platform) -> str | None:
    """vLLM's word for the dtype of keys and values; None: as the model's."""
    wanted, own = config.cache_dtype, _dtype(config, dtype)
    if wanted in ("model", own):
        return None
    if wanted == "float32" or platform == "cpu":
        raise ZootomyError(
            f"rollout.cache_dtype is {wanted!r} beside a model in {own}; vLLM on {platform} keeps "
            "keys and values in the model's dtype here. Leave cache_dtype 'model'"
        )
    return wanted


def _cache_bytes(
    config: RolloutConfig,
    model: ModelConfig,
    seqs: int,
    length: int,
    platform: Platform,
    dtype: str,
) -> int | None:
    """Bytes of keys and values; on a CPU room for every slot, so that nothing is preempted."""
    knobs = config.vllm
    if knobs.kv_cache_mib is not None:
        return knobs.kv_cache_mib * MIB
    if platform != "cpu" or knobs.memory_utilisation is not None:
        return None
    width = 4 if _dtype(config, dtype) == "float32" else 2
    token = 2 * model.num_layers * model.num_kv_heads * model.head_dim * width
    rows = -(-length // BLOCK) + 1
    return max(16 * MIB, token * rows * BLOCK * (seqs + 1))


def _refuse_without_effect(config: RolloutConfig, model: ModelConfig, platform: Platform) -> None:
    """Knobs that the platform ignores, each with a sentence."""
    knobs = config.vllm
    if knobs.tpu_backend != "auto" and platform != "tpu":
        raise ZootomyError(
            f"rollout.vllm.tpu_backend is {knobs.tpu_backend!r}, and vLLM runs on {platform} here; "
            "leave it 'auto'"
        )
    if knobs.additional_config and platform != "tpu":
        raise ZootomyError(
            f"rollout.vllm.additional_config is read by tpu-inference only, and vLLM runs on "
            f"{platform} here; leave it empty"
        )
    if knobs.sleep and platform != "cuda":
        raise ZootomyError(
            f"rollout.vllm.sleep is {knobs.sleep}, and vLLM sleeps on GPUs only (here it runs on "
            f"{platform}); leave it 0"
        )
    if platform != "cpu":
        return
    if knobs.async_scheduling:
        raise ZootomyError(
            "rollout.vllm.async_scheduling is True, and vLLM turns it off on a CPU; leave it None"
        )
    if model.head_dim not in CPU_HEAD_DIMS:
        raise ZootomyError(
            f"the policy's head_dim is {model.head_dim}; vLLM on a CPU has attention for "
            f"{', '.join(map(str, CPU_HEAD_DIMS))} only. Take another model, or "
            "rollout.engine='vanilla'"
        )
