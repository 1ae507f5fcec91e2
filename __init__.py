"""Zootomy: a composable zoo of reinforcement-learning algorithms for language models."""

from .registry import (
    BlockSpec,
    ZootomyError,
    block,
    describe,
    find,
    get,
    load_plugin,
    names,
    register,
)

__version__ = "0.1.0"

__all__ = [
    "BlockSpec",
    "ZootomyError",
    "block",
    "describe",
    "find",
    "get",
    "load_plugin",
    "names",
    "register",
]
