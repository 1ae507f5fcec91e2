"""Arrays as a checkpoint holds them, whatever devices and processes they lie on."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..models import everywhere, from_host, several, to_host


def to_save(named: dict[str, Any]) -> dict[str, Any]:
    """Arrays by name; what each of several processes has for itself is put on all devices.

    Such an array is the same in every process, and written once.
    """
    return {
        name: from_host(leaf, everywhere()) if _own(leaf) else leaf for name, leaf in named.items()
    }


def wanted(named: dict[str, Any]) -> dict[str, Any]:
    """What is asked for in the place of arrays of this run: shape, dtype and where to lie."""
    return {
        name: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=everywhere() if _own(leaf) else leaf.sharding
        )
        for name, leaf in named.items()
    }


def as_before(named: dict[str, Any], restored: dict[str, Any]) -> dict[str, Any]:
    """What was read, on the devices on which this run's arrays of the same names lie."""
    return {
        name: jnp.asarray(to_host(leaf)) if _own(named[name]) else leaf
        for name, leaf in restored.items()
    }


def _own(leaf: Any) -> bool:
    return several() and isinstance(leaf, jax.Array) and leaf.is_fully_addressable
