"""Weights from where they are trained to where they sample: named arrays, in buckets, versioned."""

from .backends import BACKENDS, check_backend, make_transfer
from .buckets import Piece, TensorInfo, describe_arrays, plan_buckets
from .config import TransferConfig
from .direct import Direct
from .shared_memory import SharedMemory
from .types import Delivery, Received, TransferError, WeightTransfer

__all__ = [
    "BACKENDS",
    "Delivery",
    "Direct",
    "Piece",
    "Received",
    "SharedMemory",
    "TensorInfo",
    "TransferConfig",
    "TransferError",
    "WeightTransfer",
    "check_backend",
    "describe_arrays",
    "make_transfer",
    "plan_buckets",
]
