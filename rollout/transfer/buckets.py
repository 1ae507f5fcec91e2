"""Named arrays cut into buckets of bounded size."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

ALIGNMENT = 64  # bytes: what vector loads and BLAS like


@dataclass(frozen=True)
class TensorInfo:
    """An array without its contents.

    Attributes:
        name: of the parameter.
        shape: as the receiver sees it.
        dtype: NumPy's name of it, `bfloat16` included.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Size of the contents."""
        return int(np.prod(self.shape, dtype=np.int64)) * jnp.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Piece:
    """A stretch of one tensor within a bucket.

    Attributes:
        tensor: index of the tensor.
        start: first byte of the tensor.
        stop: behind its last byte.
        offset: where the piece stands among all bytes that are sent.
    """

    tensor: int
    start: int
    stop: int
    offset: int


def describe_arrays(arrays: Mapping[str, Any]) -> tuple[TensorInfo, ...]:
    """Name, shape and dtype of each array."""
    return tuple(
        TensorInfo(name, tuple(x.shape), jnp.dtype(x.dtype).name) for name, x in arrays.items()
    )


def offsets(tensors: Sequence[TensorInfo]) -> tuple[list[int], int]:
    """Where each tensor begins, aligned, and the bytes of all of them."""
    starts, end = [], 0
    for info in tensors:
        starts.append(end)
        end += -(-info.nbytes // ALIGNMENT) * ALIGNMENT
    return starts, end


def plan_buckets(tensors: Sequence[TensorInfo], bucket_bytes: int) -> list[list[Piece]]:
    """Buckets of at most `bucket_bytes`; a larger tensor is cut over several.

    >>> small, large = TensorInfo("b", (2,), "float32"), TensorInfo("w", (5,), "float32")
    >>> [[(p.tensor, p.start, p.stop) for p in bucket]
    ...  for bucket in plan_buckets([small, large], 16)]
    [[(0, 0, 8), (1, 0, 8)], [(1, 8, 20)]]
    """
    starts, _ = offsets(tensors)
    buckets: list[list[Piece]] = [[]]
    room = bucket_bytes
    for index, info in enumerate(tensors):
        done = 0
        while done < info.nbytes:
            if room == 0:
                buckets.append([])
                room = bucket_bytes
            stop = min(info.nbytes, done + room)
            buckets[-1].append(Piece(index, done, stop, starts[index] + done))
            room -= stop - done
            done = stop
    return [bucket for bucket in buckets if bucket]


def view_of(buffer: np.ndarray, info: TensorInfo, start: int) -> np.ndarray:
    """A tensor within a byte buffer, not copied."""
    raw = buffer[start : start + info.nbytes]
    return raw.view(jnp.dtype(info.dtype)).reshape(info.shape)


def views_of(buffer: np.ndarray, tensors: Sequence[TensorInfo]) -> dict[str, np.ndarray]:
    """All tensors within a byte buffer, by name, not copied."""
    starts, _ = offsets(tensors)
    return {
        info.name: view_of(buffer, info, start) for info, start in zip(tensors, starts, strict=True)
    }


def fill(buffer: np.ndarray, array: np.ndarray, pieces: Sequence[Piece], start: int) -> None:
    """Write the pieces of one tensor into a byte buffer; rows of a transposed view included.

    Args:
        buffer: all bytes that are sent.
        array: the tensor, contiguous or not.
        pieces: its pieces.
        start: where the tensor begins in the buffer.
    """
    if not array.flags.c_contiguous:
        # A transposed matrix is written row by row straight into its place.
        target = buffer[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        np.copyto(target, array)
        return
    flat = array.reshape(-1).view(np.uint8)
    for piece in pieces:
        buffer[piece.offset : piece.offset + piece.stop - piece.start] = flat[
            piece.start : piece.stop
        ]


def checksum(buffer: np.ndarray, bucket: Sequence[Piece]) -> int:
    """CRC-32 over the bytes of a bucket."""
    total = 0
    for piece in bucket:
        stop = piece.offset + piece.stop - piece.start
        total = zlib.crc32(buffer[piece.offset : stop].data, total)
    return total


def as_numpy(array: Any, name: str, info: TensorInfo) -> np.ndarray:
    """An array in host memory; on a CPU without a copy."""
    host = np.asarray(array)
    if host.dtype != jnp.dtype(info.dtype) or host.shape != info.shape:
        raise AssertionError(f"{name} changed while it was sent")
    return host
