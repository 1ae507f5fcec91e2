"""A model without its arrays, as programs are compiled for it."""

from __future__ import annotations

from typing import Any

from flax import nnx


class Structure:
    """The structure of a model; programs of equal ones are the same.

    A call of a program looks it up by the hash of its structure, which takes 0.4 ms to work out
    for 4 layers: here that is done once.

    Args:
        graph: as `nnx.split` gives it.
    """

    def __init__(self, graph: nnx.GraphDef[Any]):
        self.graph = graph
        self._hash = hash(graph)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Structure) and self.graph == other.graph

    def merge(self, *states: Any) -> Any:
        """The model with these arrays."""
        return nnx.merge(self.graph, *states)
