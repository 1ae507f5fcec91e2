"""From our knobs to the arguments of SGLang-JAX's `Engine`."""

from __future__ import annotations

from typing import Any

from ...models import ModelConfig
from ...registry import ZootomyError
from ..config import RolloutConfig
from ..knobs import parallel, refuse_taken
from ..types import SamplingParams

TAKEN = {
    "model_path": "rollout.sglang_jax.model",
    "dtype": "rollout.sglang_jax.dtype",
    "load_format": "rollout.sglang_jax.load_format",
    "context_length": "rollout.sglang_jax.context_length",
    "mem_fraction_static": "rollout.sglang_jax.memory_fraction",
    "max_total_tokens": "rollout.sglang_jax.max_total_tokens",
    "max_running_requests": "rollout.max_slots",
    "max_prefill_tokens": "rollout.prefill_tokens",
    "disable_radix_cache": "rollout.sglang_jax.radix_cache",
    "enable_deterministic_sampling": "rollout.sglang_jax.deterministic_sampling",
    "disable_precompile": "rollout.sglang_jax.precompile",
    "precompile_token_paddings": "rollout.sglang_jax.token_paddings",
    "precompile_bs_paddings": "rollout.sglang_jax.batch_paddings",
    "chunked_prefill_size": "rollout.sglang_jax.chunked_prefill",
    "page_size": "rollout.sglang_jax.page_size",
    "tp_size": "rollout.sglang_jax.tensor_parallel",
    "dp_size": "rollout.sglang_jax.data_parallel",
    "attention_backend": "rollout.sglang_jax.attention_backend",
    "random_seed": "rollout.seed",
    "kv_cache_dtype": "rollout.cache_dtype",
    "skip_tokenizer_init": "the engine itself (it reads and gives token ids)",
    "enable_single_process": "the engine itself (weights go into its own process)",
    "device": "the engine itself (that of JAX)",
}
LANES = 128
MARGIN = 2  # positions that it keeps free, or it would cut the longest completions
PAGES = 2  # of room beyond the slots, for rows that begin a page


def engine_arguments(
    config: RolloutConfig,
    model: ModelConfig,
    *,
    dtype: str,
    device: str,
    mesh: dict[str, int] | None = None,
) -> dict[str, Any]:
    """Everything `Engine` is told, all but `model_path`.

    Args:
        config: the settings.
        model: sizes of the policy.
        dtype: the policy's, for `dtype="model"`.
        device: JAX's: `cpu`, `tpu` or `gpu`.
        mesh: size by axis of the rollout mesh, for parallel sizes left unset.

    Raises:
        ZootomyError: for a limit that does not fit, or a pass-through argument that a knob sets.
    """
    knobs = config.sglang_jax
    refuse_taken("rollout.sglang_jax.engine_arguments", knobs.engine_arguments, TAKEN)
    total = config.max_prompt_tokens + config.max_new_tokens
    length = knobs.context_length or total
    if length < total:
        raise ZootomyError(
            f"rollout.sglang_jax.context_length is {length}, below max_prompt_tokens "
            f"{config.max_prompt_tokens} + max_new_tokens {config.max_new_tokens} = {total}; "
            "raise it, or leave it None"
        )
    if knobs.attention_backend == "fa" and device == "cpu":
        raise ZootomyError(
            "rollout.sglang_jax.attention_backend is 'fa', whose kernels run on TPUs only; leave "
            "it None"
        )
    backend = knobs.attention_backend or ("native" if device == "cpu" else "fa")
    if backend == "native" and model.head_dim % LANES:
        raise ZootomyError(
            f"the policy's head_dim is {model.head_dim}; sglang_jax's native attention gives heads "
            f"back padded to a multiple of {LANES}, which does not fit. Take a model with such "
            "heads, or another engine"
        )
    if config.cache_dtype == "float32":
        raise ZootomyError(
            "rollout.cache_dtype is 'float32'; sglang_jax keeps keys and values in the model's "
            "dtype or in bfloat16. Leave it 'model'"
        )
    page = knobs.page_size
    room = config.max_slots * (-(-length // page) + PAGES) * page
    # Left to it, the cache of a CPU would take half of the memory.
    bounded = device != "cpu" or knobs.memory_fraction is not None
    tensor, data = parallel(mesh)
    tensor, data = knobs.tensor_parallel or tensor, knobs.data_parallel or data
    arguments: dict[str, Any] = {
        "dtype": dtype if knobs.dtype == "model" else knobs.dtype,
        "load_format": knobs.load_format,
        "device": device,
        "context_length": length + MARGIN,
        "max_seq_len": length + MARGIN,
        "max_running_requests": config.max_slots,
        "max_prefill_tokens": config.prefill_tokens,
        "disable_radix_cache": not knobs.radix_cache,
        "enable_deterministic_sampling": knobs.deterministic_sampling,
        "disable_precompile": not knobs.precompile,
        "page_size": page,
        "tp_size": tensor,
        "dp_size": data,
        # Left out, every device that JAX sees would have to be on its mesh.
        "device_indexes": list(range(tensor * data)),
        "attention_backend": backend,
        "random_seed": config.seed,
        "skip_tokenizer_init": True,
        "enable_single_process": True,
    }
    optional = {
        "mem_fraction_static": knobs.memory_fraction,
        "max_total_tokens": knobs.max_total_tokens or (None if bounded else room),
        "precompile_token_paddings": list(knobs.token_paddings) or None,
        "precompile_bs_paddings": list(knobs.batch_paddings) or None,
        "chunked_prefill_size": knobs.chunked_prefill,
        "kv_cache_dtype": None if config.cache_dtype == "model" else "bf16",
    }
    arguments |= {name: value for name, value in optional.items() if value is not None}
    return arguments | dict(knobs.engine_arguments)


def sampling_arguments(
    sampling: SamplingParams, seed: int | None, *, logprobs: bool
) -> dict[str, Any]:
    """One completion's sampling parameters, under the engine's names.

    Raises:
        ZootomyError: for truncated sampling with log-probabilities, which the engine reports of
            the whole distribution.
    """
    if logprobs and not sampling.full_distribution:
        raise ZootomyError(
            "sglang_jax reports log-probabilities of the whole distribution, not of what top_p, "
            "top_k or min_p leave. Leave them at 1.0, None and 0.0, or set "
            "rollout.sglang_jax.logprobs False"
        )
    found: dict[str, Any] = {
        "max_new_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": -1 if sampling.top_k is None else sampling.top_k,
        "min_p": sampling.min_p,
        "stop_token_ids": list(sampling.stop_ids),
        # It switches stop tokens off as well; the model's own end of text is taken out instead.
        "ignore_eos": not sampling.stop_ids,
        "no_stop_trim": True,
        "n": 1,
    }
    return found if seed is None else found | {"sampling_seed": seed}
