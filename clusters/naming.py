"""Trees of arrays by dotted path, to save them, to compare them, and to name one in an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from jax.tree_util import GetAttrKey

from ..registry import ZootomyError


def named_leaves(tree: Any) -> dict[str, Any]:
    """The leaves of a tree by dotted path, e.g. `actor.params.layers.0.mlp.gate_proj.kernel`."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {path_name(path): leaf for path, leaf in leaves}


def from_named(like: Any, named: Mapping[str, Any]) -> Any:
    """The tree of `like` with the leaves of `named`."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    return jax.tree.unflatten(structure, [named[path_name(path)] for path, _ in leaves])


def same_structure(expected: Any, given: Any, what: str) -> None:
    """Check that two trees hold the same names, shapes and types.

    Args:
        expected: the tree of this run: arrays, or anything with a shape and a dtype.
        given: the tree that is to take its place.
        what: what is restored, for the message.

    Raises:
        ZootomyError: it names the first leaf that differs.
    """
    ours, theirs = named_leaves(expected), named_leaves(given)
    # A parameter says more than the optimizer's memory of it.
    for name, leaf in sorted(ours.items(), key=lambda item: ".params." not in item[0]):
        if name not in theirs:
            raise ZootomyError(
                f"The saved {what} lacks {name!r} ({_shape(leaf)}), which this run has: it is of "
                "another model, optimizer or role."
            )
        if _shape(leaf) != _shape(theirs[name]):
            raise ZootomyError(
                f"The saved {what} is of another model, optimizer or role: {name!r} is "
                f"{_shape(theirs[name])} there and {_shape(leaf)} in this run."
            )
    for name, leaf in theirs.items():
        if name not in ours:
            raise ZootomyError(
                f"The saved {what} holds {name!r} ({_shape(leaf)}), which this run does not "
                "have: it is of another model, optimizer or role."
            )


def path_name(path: tuple[Any, ...]) -> str:
    """The dotted name of a leaf's place in a tree."""
    # The last step into an nnx.Variable is its array; a person does not see it.
    if path and isinstance(path[-1], GetAttrKey) and path[-1].name == "value":
        path = path[:-1]
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _shape(leaf: Any) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"
