"""The child's side of `RemoteEngine`: one engine, told what to do over a socket."""

from __future__ import annotations

import queue
import threading
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from ..models import ModelConfig
from ..registry import ZootomyError
from .config import RolloutConfig
from .streaming import stream
from .transfer import TransferError, make_transfer
from .types import Abortable

PART, DONE, FAILED = "part", "done", "failed"
"""What an answer is: one of several, the last, or an error."""


class Start(NamedTuple):
    """What a child is told first.

    Attributes:
        config: limits and settings.
        model: sizes of the policy.
        dtype: of the policy's arithmetic.
        mesh: size by axis of the rollout mesh.
    """

    config: RolloutConfig
    model: ModelConfig
    dtype: str
    mesh: dict[str, int] | None


def make(start: Start) -> Any:
    """The engine, without weights."""
    name = start.config.engine
    if name == "vllm":
        from .vllm.engine import VllmEngine

        return VllmEngine(start.config, start.model, dtype=start.dtype, mesh=start.mesh)
    if name == "sglang_jax":
        from .sglang_jax.engine import SglangJaxEngine

        return SglangJaxEngine(start.config, start.model, dtype=start.dtype, mesh=start.mesh)
    from ..models import make_model
    from .vanilla import VanillaEngine

    # The vanilla engine has weights from the start; these are replaced before any token.
    model = make_model(start.model, dtype=start.dtype, param_dtype=start.dtype)
    return VanillaEngine(start.config, model)


def serve(line: Connection) -> None:
    """Do what comes over the line, in order; an abort is heard at once.

    Args:
        line: the parent's end of it sends `(number, message)` and gets `(number, kind, value)`, of
            which `PART`s come before the last.
    """
    orders: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    engines: list[Any] = []

    def listen() -> None:
        while True:
            try:
                number, message = line.recv()
            except (EOFError, OSError):
                number, message = -1, ("close",)
            if message[0] in ("abort", "close"):
                for engine in engines:
                    if isinstance(engine, Abortable):
                        engine.abort()
            if message[0] != "abort":
                orders.put((number, message))
            if message[0] == "close":
                return

    threading.Thread(target=listen, daemon=True).start()
    transfer = None
    while True:
        number, message = orders.get()
        if message[0] == "close":
            for engine in engines:
                engine.close()
            return
        try:
            if isinstance(message, Start):
                engines.append(make(message))
                transfer = make_transfer(message.config.transfer, other_process=True)
                answer = None
            elif message[0] == "generate":
                answer = engines[0].generate(*message[1:])
            elif message[0] == "stream":
                for one in stream(engines[0], *message[1:]):
                    line.send((number, PART, one))
                answer = None
            else:
                assert transfer is not None
                received = transfer.receive(message[1])
                engines[0].update_weights(dict(received.arrays), received.version)
                answer = None
        except Exception as error:
            line.send((number, FAILED, _plain(error)))
        else:
            line.send((number, DONE, answer))


def _plain(error: Exception) -> ZootomyError:
    """An error that the parent can read, whatever it holds."""
    if isinstance(error, TransferError):
        return TransferError(str(error))
    if isinstance(error, ZootomyError):
        return ZootomyError(str(error))
    return ZootomyError(f"the engine failed ({type(error).__name__}): {error}")


def main(handle: int) -> None:
    """Serve over an inherited socket."""
    serve(Connection(handle))
