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

    def merge(self, *arrays: Any) -> Any:
        """The model with these arrays, as `take_apart` gives them."""
        return nnx.merge(self.graph, *arrays)


def take_apart(model: Any, part: Any) -> tuple[Structure, dict[Any, Any], dict[Any, Any]]:
    """A model's structure, the arrays of a part of it, and all others.

    The arrays are in nested dicts by attribute, which a call of a program takes apart in a fifth
    of the time of an `nnx.State` and puts together in a twentieth.

    Args:
        model: an NNX model, or one of shapes.
        part: a filter of `nnx.split`.
    """
    graph, params, rest = nnx.split(model, part, ...)
    return Structure(graph), nnx.to_pure_dict(params), nnx.to_pure_dict(rest)
