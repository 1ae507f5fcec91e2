"""Between processes of one host: two buffers in shared memory, one filled while the other is read.

A buffer holds a whole version. Its header says which, and is written last: a sender that dies
half-way leaves a buffer that no receiver takes, and the version before it in the other.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Mapping
from multiprocessing.shared_memory import SharedMemory as SystemSegment
from typing import Any

import numpy as np

from ...registry import ZootomyError
from .buckets import (
    Piece,
    as_numpy,
    checksum,
    describe_arrays,
    fill,
    offsets,
    plan_buckets,
    views_of,
)
from .config import TransferConfig
from .types import Delivery, Received, TransferError

HEADER = 64  # bytes before the weights: two int64, the version and whether it is whole
FILLING, WHOLE = 0, 1


class Segment(SystemSegment):
    """Shared memory that goes with its last view, without complaint."""

    def __del__(self) -> None:
        with contextlib.suppress(BufferError):
            super().__del__()


class Attached:
    """Shared memory that another process has made; it is unmapped with its last view.

    Python's own class would tell a process that watches over resources, which removes the memory
    when a reader ends, or is not there (an engine may have ended it).

    Args:
        name: as its maker calls it.

    Raises:
        FileNotFoundError: if it is gone.
    """

    def __init__(self, name: str):
        # Not at the top: Windows has none, and this package is to import there all the same.
        import _posixshmem  # pyright: ignore[reportMissingImports]

        handle = _posixshmem.shm_open(f"/{name}", os.O_RDWR, mode=0)
        try:
            self.size = os.fstat(handle).st_size
            self.buf = memoryview(mmap.mmap(handle, self.size))
        finally:
            os.close(handle)
        self.name = name


class SharedMemory:
    """Writes into one buffer while the other may still be read.

    Args:
        config: size of a bucket, and whether they are summed up.
    """

    def __init__(self, config: TransferConfig | None = None):
        self.config = config or TransferConfig()
        self._segments: dict[int, Segment] = {}
        self._attached: dict[str, Attached] = {}
        self._accepted = 1  # the buffer that the receiver works with

    def send(self, arrays: Mapping[str, Any], version: int) -> Delivery:
        """See `WeightTransfer`; a bucket is copied at a time."""
        tensors = describe_arrays(arrays)
        starts, size = offsets(tensors)
        segment = self._segment(HEADER + size)
        header, buffer = _parts(segment)
        header[1] = FILLING
        header[0] = version
        buckets = plan_buckets(tensors, self.config.bucket_bytes)
        sums = []
        written: set[int] = set()
        for bucket in buckets:
            for index, pieces in _by_tensor(bucket).items():
                info = tensors[index]
                array = as_numpy(arrays[info.name], info.name, info)
                if array.flags.c_contiguous:
                    fill(buffer, array, pieces, starts[index])
                elif index not in written:
                    fill(buffer, array, [], starts[index])
                    written.add(index)
            if self.config.checksum:
                sums.append(checksum(buffer, bucket))
        header[1] = WHOLE
        return Delivery(version, tensors, segment.name, tuple(sums))

    def receive(self, delivery: Delivery) -> Received:
        """See `WeightTransfer`; the arrays are views of the buffer, not copies."""
        _, size = offsets(delivery.tensors)
        segment = self._attach(delivery.where)
        if segment.size < HEADER + size:
            raise TransferError(
                f"The shared memory of version {delivery.version} has {segment.size} bytes, "
                f"{HEADER + size} were announced."
            )
        header, buffer = _parts(segment)
        if header[1] != WHOLE or header[0] != delivery.version:
            state = "half-written" if header[1] != WHOLE else f"of version {header[0]}"
            raise TransferError(
                f"Weights of version {delivery.version} did not arrive: the buffer is {state}. "
                "The engine keeps the weights it has; send them again."
            )
        if delivery.checksums:
            buckets = plan_buckets(delivery.tensors, self.config.bucket_bytes)
            for number, (bucket, expected) in enumerate(
                zip(buckets, delivery.checksums, strict=True)
            ):
                if checksum(buffer, bucket) != expected:
                    raise TransferError(
                        f"Bucket {number} of version {delivery.version} arrived changed: its "
                        "checksum differs. The engine keeps the weights it has; send them again."
                    )
        return Received(delivery.version, views_of(buffer, delivery.tensors))

    def accepted(self, delivery: Delivery) -> None:
        """See `WeightTransfer`; the next weights go into the other buffer."""
        for slot, segment in self._segments.items():
            if segment.name == delivery.where:
                self._accepted = slot

    def close(self) -> None:
        """Remove the buffers that were made here, detach from the others."""
        for segment in self._segments.values():
            _shut(segment)
            with contextlib.suppress(FileNotFoundError):
                segment.unlink()
        self._attached.clear()
        self._segments.clear()

    def _segment(self, size: int) -> Segment:
        """The buffer that the receiver does not work with, large enough."""
        slot = 1 - self._accepted
        old = self._segments.get(slot)
        if old is not None and old.size >= size:
            return old
        if old is not None:
            _shut(old)
            old.unlink()
        try:
            self._segments[slot] = Segment(create=True, size=size)
        except OSError as error:
            raise ZootomyError(
                f"There is no shared memory for {size / 2**20:.0f} MiB of weights "
                f"({error.strerror}); two such buffers are needed. Make /dev/shm larger, or run "
                "the engine in the trainer's process (rollout.vllm.server_mode False)."
            ) from error
        return self._segments[slot]

    def _attach(self, name: str) -> Segment | Attached:
        for own in self._segments.values():
            if own.name == name:
                return own
        if name not in self._attached:
            try:
                self._attached[name] = Attached(name)
            except FileNotFoundError:
                raise TransferError(
                    f"The shared memory {name!r} is gone: the trainer's process has ended or has "
                    "closed the transfer. The engine keeps the weights it has."
                ) from None
        return self._attached[name]


def _parts(segment: Segment | Attached) -> tuple[np.ndarray, np.ndarray]:
    memory = segment.buf
    assert memory is not None  # it is open
    whole = np.frombuffer(memory, np.uint8)
    return whole[:16].view(np.int64), whole[HEADER:]


def _by_tensor(bucket: list[Piece]) -> dict[int, list[Piece]]:
    found: dict[int, list[Piece]] = {}
    for piece in bucket:
        found.setdefault(piece.tensor, []).append(piece)
    return found


def _shut(segment: Segment) -> None:
    # Views that someone still holds keep the mapping alive; it goes when they do.
    with contextlib.suppress(BufferError):
        segment.close()
