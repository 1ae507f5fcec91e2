"""vLLM behind the interface of a rollout engine: on CPUs, GPUs, and on TPUs by tpu-inference."""

from .config import VllmConfig

__all__ = ["VllmConfig"]
