"""Zootomy: a composable zoo of reinforcement-learning algorithms for language models.

Importing it gives every built-in block its name. What needs a model (`Learner`, `Cluster`, ...) is
imported when it is first asked for, so that the maths alone starts fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import blocks as blocks
from .registry import (
    BlockSpec,
    ZootomyError,
    block,
    describe,
    find,
    get,
    load_entry_points,
    load_plugin,
    names,
    register,
)

if TYPE_CHECKING:
    from .clusters import Cluster, ClusterConfig, Role
    from .learners import Algorithm, Learner, algorithm, algorithms, assemble
    from .learners.run import train
    from .learners.run_config import RunConfig
    from .rollout import RolloutConfig

__version__ = "0.1.0"

_LAZY = {
    "Algorithm": "learners",
    "Cluster": "clusters",
    "ClusterConfig": "clusters",
    "Learner": "learners",
    "Role": "clusters",
    "RolloutConfig": "rollout",
    "RunConfig": "learners.run_config",
    "algorithm": "learners",
    "algorithms": "learners",
    "assemble": "learners",
    "train": "learners.run",
}

__all__ = [
    "Algorithm",
    "BlockSpec",
    "Cluster",
    "ClusterConfig",
    "Learner",
    "Role",
    "RolloutConfig",
    "RunConfig",
    "ZootomyError",
    "algorithm",
    "algorithms",
    "assemble",
    "block",
    "blocks",
    "describe",
    "find",
    "get",
    "load_plugin",
    "names",
    "register",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


load_entry_points()
