"""What all vLLM engines of a process share: the context of a forward pass, groups of workers."""

from __future__ import annotations

import gc
import importlib
import threading
from typing import Any

TURN = threading.RLock()
"""vLLM keeps the context of its forward pass in a global: one engine of a process at a time."""


def keep_apart(llm: Any) -> None:
    """Let the end of one engine leave the others of the process alone.

    vLLM would take down the process's groups of workers with any engine that ends or is forgotten,
    and the others could not sample any more.
    """
    finalizer = vars(llm.llm_engine.engine_core).get("_finalizer")
    if finalizer is not None:
        finalizer.detach()


def end(llm: Any) -> None:
    """Give back what one engine holds, and only that."""
    client = llm.llm_engine.engine_core
    core = vars(client).get("engine_core")
    if core is None:  # it lives in another process
        client.shutdown()
        return
    core.model_executor.shutdown()
    core.scheduler.shutdown()
    gc.unfreeze()  # vLLM keeps its weights from the collector


def release() -> None:
    """Let the device have what nothing refers to any more."""
    gc.collect()
    torch = importlib.import_module("torch")
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
