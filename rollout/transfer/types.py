"""What every way of moving weights agrees on: send named arrays, get a small ticket, receive.

A new backend (collectives over NCCL, or ICI between TPU slices) has its seat here: it implements
`WeightTransfer`, keeps what `receive` promises, and gets a word in `backends.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ...registry import ZootomyError
from .buckets import TensorInfo


class TransferError(ZootomyError):
    """Weights that did not arrive whole; the receiver goes on with the ones it has."""


@dataclass(frozen=True)
class Delivery:
    """The ticket of a transfer: small, and the same in every process.

    Attributes:
        version: of the weights.
        tensors: what was sent, in order.
        where: what the backend needs to find it.
        checksums: one a bucket; empty where none were asked for.
    """

    version: int
    tensors: tuple[TensorInfo, ...]
    where: Any
    checksums: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Received:
    """Weights that arrived whole.

    Attributes:
        version: of the weights.
        arrays: by name, NumPy's or (within a process) the very ones that were sent; they stay as
            they are until later weights were accepted and others are sent after them.
    """

    version: int
    arrays: Mapping[str, Any]


class WeightTransfer(Protocol):
    """Moves named arrays from a trainer to an engine."""

    def send(self, arrays: Mapping[str, Any], version: int) -> Delivery:
        """Put arrays where a receiver can take them.

        Args:
            arrays: by name; anything NumPy reads without a copy, transposed views too.
            version: of these weights.

        Returns:
            The ticket. The weights accepted last stay as they are, whatever becomes of these.

        Raises:
            ZootomyError: if there is no room; nothing is left half-written that `receive` takes.
        """
        ...

    def receive(self, delivery: Delivery) -> Received:
        """The weights of a ticket, all of them.

        Raises:
            TransferError: if they are not there, not whole, or of another version.
        """
        ...

    def accepted(self, delivery: Delivery) -> None:
        """The receiver works with these weights now: what it had before may be overwritten."""
        ...

    def close(self) -> None:
        """Let go of buffers; views of received arrays are void afterwards."""
        ...
