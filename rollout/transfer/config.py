"""The settings of a weight transfer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ...registry import ZootomyError
from ..types import whole_number

TransferBackend = Literal["auto", "direct", "shared_memory", "ray"]
MIB = 1024**2


@dataclass(frozen=True, kw_only=True)
class TransferConfig:
    """How weights reach an engine.

    Attributes:
        backend: `"direct"` within a process, `"shared_memory"` between processes of one host,
            `"ray"` through Ray's object store between hosts; `"auto"` takes the first that can
            reach the engine.
        bucket_mib: most MiB that are copied at a time.
        checksum: sum up every bucket on both sides, and refuse one that arrives changed.

    Raises:
        ZootomyError: for an unknown backend, or a bucket below 1 MiB.
    """

    backend: TransferBackend = "auto"
    bucket_mib: int = 64
    checksum: bool = False

    def __post_init__(self) -> None:
        known = get_args(TransferBackend)
        if self.backend not in known:
            raise ZootomyError(
                f"rollout.transfer.backend is {self.backend!r}; expected one of "
                f"{', '.join(known)}. 'nccl' and 'ici' have a documented seat, and no "
                "implementation yet."
            )
        whole_number("rollout.transfer.bucket_mib", self.bucket_mib, 1, "an integer >= 1")

    @property
    def bucket_bytes(self) -> int:
        """The bound of a bucket, in bytes."""
        return self.bucket_mib * MIB
