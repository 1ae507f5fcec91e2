"""Taking over weights into an engine: same tree, same shapes, or an error that names the first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, NamedSharding

from ..models import from_host
from ..models.axes import ADAPTERS
from ..registry import ZootomyError
from .types import Weights

Params: TypeAlias = dict[Any, Any]
"""Parameters in nested dicts by attribute: programs take them apart quicker than an `nnx.State`."""


def named_params(weights: Weights) -> dict[str, jax.Array]:
    """Parameters by their dotted path.

    Args:
        weights: a model, its state (entries that are no `nnx.Param` are left out), a mapping from
            dotted path to array, or nested dicts of arrays.
    """
    if isinstance(weights, nnx.Module):
        weights = nnx.state(weights, nnx.Param)
    if not isinstance(weights, nnx.State):
        if isinstance(weights, Mapping):
            return _joined(weights)
        raise ZootomyError(
            f"weights are a {type(weights).__name__}; expected a model, its nnx.State, a mapping "
            "from dotted path to array, or nested dicts of arrays"
        )
    named = {}
    for path, leaf in nnx.to_flat_state(weights):
        if isinstance(leaf, nnx.Variable):
            if not isinstance(leaf, nnx.Param):
                continue
            leaf = leaf.get_value()
        named[".".join(str(part) for part in path)] = leaf
    return named


def _joined(weights: Mapping[Any, Any], before: str = "") -> dict[str, Any]:
    """Nested mappings as one, from dotted path to array."""
    named = {}
    for name, value in weights.items():
        path = f"{before}{name}"
        named |= _joined(value, f"{path}.") if isinstance(value, Mapping) else {path: value}
    return named


def replace_params(old: Params, weights: Weights) -> Params:
    """The structure of `old` with the arrays of `weights`, in the dtypes and places of `old`.

    Dtype and sharding stay those of the engine, so that no program is compiled again. An array
    that has both is shared with the caller, not copied.

    Args:
        old: the engine's parameters.
        weights: see `named_params`; the adapters alone leave the backbone as it is.

    Raises:
        ZootomyError: a parameter too many, missing, of another shape or not floating; the message
            names the first such path in the order of the paths.
    """
    if isinstance(weights, nnx.Module):
        weights = nnx.state(weights, nnx.Param)
    tree = nnx.to_pure_dict(weights) if isinstance(weights, nnx.State) else weights
    if isinstance(tree, dict) and (shared := as_they_are(old, tree)) is not None:
        return shared
    given = named_params(weights)
    expected = named_params(old)
    adapters = adapters_among(expected)
    wanted = adapters if given and given.keys() <= adapters.keys() else expected
    check_same(given, {path: tuple(array.shape) for path, array in wanted.items()})

    # Placed in one call: one an array takes longer than a small model's optimizer step.
    arrays = from_host(
        {name: jnp.asarray(given[name], mine.dtype) for name, mine in wanted.items()},
        {name: mine.sharding for name, mine in wanted.items()},
    )

    def take(path: tuple[Any, ...], mine: jax.Array) -> jax.Array:
        return arrays.get(jax.tree_util.keystr(path, simple=True, separator="."), mine)

    return jax.tree_util.tree_map_with_path(take, old)


def adapters_among(named: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Those parameters, by dotted path, that belong to adapters."""
    return {path: x for path, x in named.items() if path.rpartition(".")[2] in ADAPTERS}


def as_they_are(old: Params, weights: Params) -> Params | None:
    """A tree of the caller's arrays, if path by path they look and lie like the old ones.

    The usual case of an engine beside its trainer, told without a name or a copy of any array.
    """
    mine, structure = jax.tree.flatten(old)
    given, other = jax.tree.flatten(weights)
    if structure != other or not all(map(_alike, mine, given)):
        return None
    return jax.tree.unflatten(structure, given)


def _alike(mine: jax.Array, given: Any) -> bool:
    return (
        isinstance(given, jax.Array)
        and given.committed
        and (given.shape, given.dtype) == (mine.shape, mine.dtype)
        # Of a weak type, as `jnp.full(shape, 0.1)` is, it would have every program compiled again.
        and given.weak_type == mine.weak_type
        and given.sharding == mine.sharding
    )


def placed(params: Params) -> Params:
    """The same arrays, bound to the devices they are on: later weights are bound as well."""
    return jax.tree.map(lambda x: jax.device_put(x, x.sharding), params)


def mesh_of(params: Params) -> Mesh | None:
    """The mesh that the weights are on, if they are on one."""
    sharding = jax.tree.leaves(params)[0].sharding
    mesh = sharding.mesh if isinstance(sharding, NamedSharding) else None
    return mesh if isinstance(mesh, Mesh) else None


def check_same(given: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse weights of another structure than those the engine was made for.

    Args:
        given: arrays by dotted path.
        shapes: the engine's, by dotted path.

    Raises:
        ZootomyError: naming the first misfit, in the order of the paths.
    """
    for path in sorted(given.keys() | shapes.keys()):
        if path not in shapes:
            raise ZootomyError(
                f"weights hold {path!r}, which the engine's model does not have; send the weights "
                "of the model the engine was made with (adapters merged)"
            )
        if path not in given:
            raise ZootomyError(f"weights lack {path!r}; every parameter is sent at once")
        shape = tuple(given[path].shape)
        if shape != shapes[path]:
            raise ZootomyError(
                f"weights at {path!r} have shape {shape}; the engine's have {shapes[path]}"
            )
        if not jnp.issubdtype(given[path].dtype, jnp.floating):
            raise ZootomyError(f"weights at {path!r} are {given[path].dtype}; expected floats")
