"""A compiled function of arrays that shares with its caller what comes out as it went in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import jaxpr_as_fun


class SharingJit:
    """`jax.jit` of a function of one tree, whose outputs that are inputs are these very arrays.

    `jax.jit` alone copies them: the embedding of a model, say, of which only the layers change.

    Args:
        function: of one tree of arrays, always of the same structure and shapes; traced once.
        compiler_options: of `jax.jit`.
    """

    def __init__(
        self, function: Callable[[Any], Any], compiler_options: dict[str, Any] | None = None
    ):
        self._function = function
        self._compiler_options = compiler_options
        self._made: Callable[..., list[jax.Array]] | None = None
        self._places: list[int | None] = []
        self._structure: Any = None

    def __call__(self, tree: Any) -> Any:
        """What the function gives."""
        if self._made is None:
            self._made = self._look(tree)
        given = jax.tree.leaves(tree)
        made = iter(self._made(*given))
        leaves = [next(made) if place is None else given[place] for place in self._places]
        return jax.tree.unflatten(self._structure, leaves)

    def _look(self, tree: Any) -> Callable[..., list[jax.Array]]:
        """Find for each output the input that it is, if any; compute the others alone."""
        traced, outputs = jax.make_jaxpr(self._function, return_shape=True)(tree)
        inputs = {id(variable): place for place, variable in enumerate(traced.jaxpr.invars)}
        self._places = [inputs.get(id(variable)) for variable in traced.jaxpr.outvars]
        self._structure = jax.tree.structure(outputs)
        everything = jaxpr_as_fun(traced)

        def made(*given: jax.Array) -> list[jax.Array]:
            pairs = zip(everything(*given), self._places, strict=True)
            return [leaf for leaf, place in pairs if place is None]

        return jax.jit(made, compiler_options=self._compiler_options)
