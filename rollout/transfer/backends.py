"""Ways of moving weights, by name."""

from __future__ import annotations

from collections.abc import Callable

from ...registry import ZootomyError
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
    check_backend(config, other_process=other_process)
    name = config.backend
    if name == "auto":
        name = "shared_memory" if other_process else "direct"
    return BACKENDS[name](config)


def check_backend(config: TransferConfig, *, other_process: bool) -> None:
    """Refuse a backend that cannot reach the engine, or that moves nothing.

    Raises:
        ZootomyError: saying where the engine is.
    """
    if other_process and config.backend == "direct":
        raise ZootomyError(
            "rollout.transfer.backend is 'direct', which stays within a process, and the engine "
            "runs in another; leave it 'auto'"
        )
    if not other_process and config.backend not in ("auto", "direct"):
        raise ZootomyError(
            f"rollout.transfer.backend is {config.backend!r}, and the engine runs in the "
            "trainer's process, where weights are shared or read in place; leave it 'auto'"
        )
    for name in () if other_process else ("bucket_mib", "checksum"):
        value = vars(config)[name]
        if value != vars(TransferConfig())[name]:
            raise ZootomyError(
                f"rollout.transfer.{name} is {value!r}, and the engine runs in the trainer's "
                "process, where nothing is sent in buckets; leave it out, or run the engine in a "
                "process of its own (rollout.vllm.server_mode)"
            )
