"""A block spec: the name of a block and its hyperparameters, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


class BlockSpec:
    """The name of a block with the hyperparameters that differ from their defaults.

    A spec is data: it compares, hashes, pickles and prints by value, and knows nothing of the
    function it names. It is checked when it is put into a slot.

    Attributes:
        name: the block's name.
        hyperparameters: name -> value, read-only, sorted by name.
    """

    __slots__ = ("hyperparameters", "name")

    name: str
    hyperparameters: Mapping[str, Any]

    def __init__(self, name: str, hyperparameters: Mapping[str, Any] | None = None):
        given = dict(sorted((hyperparameters or {}).items()))
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "hyperparameters", MappingProxyType(given))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a BlockSpec is read-only; make a new one to change {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a BlockSpec is read-only; {name!r} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BlockSpec):
            return NotImplemented
        return (self.name, dict(self.hyperparameters)) == (other.name, dict(other.hyperparameters))

    def __hash__(self) -> int:
        return hash((self.name, tuple(self.hyperparameters.items())))

    def __reduce__(self) -> tuple[Any, ...]:
        return (BlockSpec, (self.name, dict(self.hyperparameters)))

    def __repr__(self) -> str:
        arguments = "".join(f", {name}={value!r}" for name, value in self.hyperparameters.items())
        return f"block({self.name!r}{arguments})"

    def replace(self, **changes: Any) -> BlockSpec:
        """The same block with some hyperparameters changed."""
        return BlockSpec(self.name, {**self.hyperparameters, **changes})


def block(name: str, /, **hyperparameters: Any) -> BlockSpec:
    """A block by name, with hyperparameters; what `Algorithm` is made of.

    >>> block("ppo_clip", clip_high=0.28)
    block('ppo_clip', clip_high=0.28)

    Args:
        name: the block's name in the slot it will be put into.
        **hyperparameters: checked against the block's signature when it is put there.

    Returns:
        The spec.
    """
    return BlockSpec(name, hyperparameters)
