"""Ways of moving weights, by name."""

from __future__ import annotations

from collections.abc import Callable

from ...registry import unknown_name
from .config import TransferConfig
from .direct import Direct
from .shared_memory import SharedMemory
from .types import WeightTransfer


def _ray(config: TransferConfig) -> WeightTransfer:
    from .ray_store import RayStore

    return RayStore(config)


BACKENDS: dict[str, Callable[[TransferConfig], WeightTransfer]] = {
    "direct": lambda config: Direct(),
    "shared_memory": SharedMemory,
    "ray": _ray,
}


def make_transfer(config: TransferConfig, *, other_process: bool) -> WeightTransfer:
    """The transfer that a config names.

    Args:
        config: the settings.
        other_process: whether the engine lives in another process; `"auto"` follows it.

    Raises:
        ZootomyError: for a backend that cannot reach the engine, or whose package is missing.
    """
    name = config.backend
    if name == "auto":
        name = "shared_memory" if other_process else "direct"
    if name not in BACKENDS:
        raise unknown_name("weight transfer", name, BACKENDS)
    return BACKENDS[name](config)
