"""Engines by name."""

from __future__ import annotations

from typing import Any

import jax

from ..models import Decoder, merge_adapters, several
from ..registry import ZootomyError
from .config import RolloutConfig, check_engine
from .extras import check_extra
from .transfer import check_backend
from .types import RolloutEngine
from .vanilla import VanillaEngine


def make_engine(
    config: RolloutConfig,
    model: Decoder,
    *,
    version: int = 0,
    mesh: dict[str, int] | None = None,
) -> RolloutEngine:
    """The engine that `config.engine` names, over a model.

    Args:
        config: limits and settings.
        model: structure and first weights; shared, not copied, by an engine in this process.
        version: of those weights.
        mesh: size by axis of the rollout mesh, for an engine's parallel sizes left unset.

    Raises:
        ZootomyError: a package that is missing, a setting without effect, limits the model cannot
            keep.
    """
    check_engine(config.engine)
    if config.engine == "vanilla":
        check_available(config)
        return VanillaEngine(config, model, version=version)
    # Such an engine is sent whole models, with the adapters in the weights.
    model = merge_adapters(model)
    engine = _real_engine(config, model, mesh)
    engine.update_weights(model, version)
    return engine


def check_available(config: RolloutConfig) -> None:
    """Refuse what can be known without starting anything: a package, a way for the weights.

    Raises:
        ZootomyError: naming the extra to install, the setting of the transfer, or, in several
            processes, the engine to take.
    """
    check_engine(config.engine)
    packages = {"vllm": "vllm", "sglang_jax": "sgl_jax"}
    if config.engine in packages:
        if several():
            raise ZootomyError(
                f"rollout.engine {config.engine!r} samples for one process, and this run has "
                f"{jax.process_count()}. Set rollout.engine to 'vanilla', which samples on the "
                "devices of all, or train in one process."
            )
        check_extra(packages[config.engine])
    check_transfer(config)


def check_transfer(config: RolloutConfig) -> None:
    """Refuse a transfer that cannot reach the engine, or that moves nothing.

    Raises:
        ZootomyError: naming the setting.
    """
    apart = config.engine == "sglang_jax" or config.vllm.server_mode
    check_backend(config.transfer, other_process=apart)


def _real_engine(
    config: RolloutConfig,
    model: Decoder,
    mesh: dict[str, int] | None,
) -> RolloutEngine:
    """An engine that waits for its first weights."""
    from .remote import RemoteEngine

    check_available(config)
    dtype = model.dtype.name
    if config.engine == "sglang_jax":
        timeout = config.sglang_jax.start_timeout
        return RemoteEngine(config, model.config, dtype, mesh, timeout)
    if config.vllm.server_mode:
        timeout = config.vllm.start_timeout
        return RemoteEngine(config, model.config, dtype, mesh, timeout)
    from .vllm.engine import VllmEngine

    return VllmEngine(config, model.config, dtype=dtype, mesh=mesh)


def keeps_arrays(engine: RolloutEngine, *, together: bool) -> bool:
    """Whether an engine needs the very arrays it was sent until it is sent others.

    Args:
        engine: a process of its own has copies; vLLM in this process goes back to them when an
            update fails half-way; the vanilla engine samples from them.
        together: whether engine and trainer are on one mesh, where nothing is copied.
    """
    from .remote import RemoteEngine

    if isinstance(engine, RemoteEngine):
        return False
    return together or not isinstance(engine, VanillaEngine)


def takes_adapters(engine: RolloutEngine) -> bool:
    """Whether adapters alone can be sent to an engine, because it has the backbone itself."""
    return isinstance(engine, VanillaEngine) and engine.adapted


def weights_of(engine: RolloutEngine) -> Any:
    """The arrays that an engine in this process samples from, only to look at; else None."""
    return engine.params if isinstance(engine, VanillaEngine) else None
