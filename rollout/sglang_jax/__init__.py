"""SGLang-JAX behind the interface of a rollout engine, in a process of its own."""

from .config import SglangJaxConfig

__all__ = ["SglangJaxConfig"]
