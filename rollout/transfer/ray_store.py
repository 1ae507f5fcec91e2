"""Between hosts that share a Ray cluster: buckets in Ray's object store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..extras import import_extra
from .buckets import (
    Piece,
    as_numpy,
    checksum,
    describe_arrays,
    offsets,
    plan_buckets,
    views_of,
)
from .config import TransferConfig
from .types import Delivery, Received, TransferError


class RayStore:
    """Puts a bucket at a time into the object store; receivers read it where they are.

    Args:
        config: size of a bucket, and whether they are summed up.

    Raises:
        ZootomyError: if Ray is not installed or not running.
    """

    def __init__(self, config: TransferConfig | None = None):
        self.config = config or TransferConfig()
        self._ray = import_extra("ray")
        self._held: list[list[Any]] = []
        if not self._ray.is_initialized():
            raise TransferError(
                "Ray is not running; call ray.init(), or set rollout.transfer.backend to "
                "'shared_memory' if the engine is on this host."
            )

    def send(self, arrays: Mapping[str, Any], version: int) -> Delivery:
        """See `WeightTransfer`; one bucket is in memory beside the weights at a time."""
        tensors = describe_arrays(arrays)
        sums, references = [], []
        for bucket in plan_buckets(tensors, self.config.bucket_bytes):
            length = sum(piece.stop - piece.start for piece in bucket)
            packed = np.empty(length, np.uint8)
            at = 0
            for piece in bucket:
                info = tensors[piece.tensor]
                host = np.ascontiguousarray(as_numpy(arrays[info.name], info.name, info))
                flat = host.reshape(-1).view(np.uint8)
                packed[at : at + piece.stop - piece.start] = flat[piece.start : piece.stop]
                at += piece.stop - piece.start
            if self.config.checksum:
                sums.append(_sum(packed))
            references.append(self._ray.put(packed))
        self._held.append(references)
        return Delivery(version, tensors, tuple(references), tuple(sums))

    def receive(self, delivery: Delivery) -> Received:
        """See `WeightTransfer`."""
        _, size = offsets(delivery.tensors)
        buffer = np.empty(size, np.uint8)
        buckets = plan_buckets(delivery.tensors, self.config.bucket_bytes)
        for number, (bucket, reference) in enumerate(zip(buckets, delivery.where, strict=True)):
            try:
                packed = self._ray.get(reference)
            except self._ray.exceptions.RayError as error:
                raise TransferError(
                    f"Bucket {number} of version {delivery.version} did not arrive "
                    f"({type(error).__name__}). The engine keeps the weights it has; send again."
                ) from error
            if delivery.checksums and _sum(packed) != delivery.checksums[number]:
                raise TransferError(
                    f"Bucket {number} of version {delivery.version} arrived changed: its checksum "
                    "differs. The engine keeps the weights it has; send them again."
                )
            at = 0
            for piece in bucket:
                length = piece.stop - piece.start
                buffer[piece.offset : piece.offset + length] = packed[at : at + length]
                at += length
        return Received(delivery.version, views_of(buffer, delivery.tensors))

    def accepted(self, delivery: Delivery) -> None:
        """See `WeightTransfer`; the objects of older weights are let go."""
        self._held = [list(delivery.where)]

    def close(self) -> None:
        """Let go of the objects; Ray frees them when no receiver holds them."""
        self._held.clear()


def _sum(packed: np.ndarray) -> int:
    return checksum(packed, [Piece(0, 0, len(packed), 0)])
