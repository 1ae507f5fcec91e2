"""A model that plays a role: its structure split from its weights."""

from __future__ import annotations

import functools
from typing import Any

import jax

from ..models import has_adapters, in_place, trained_part
from .naming import same_structure
from .sharding import HOST, Placement, on_host
from .structure import Structure, take_apart


@functools.partial(jax.jit, static_argnames=("graph",))
def _head_kernel(graph: Structure, params: Any, rest: Any) -> jax.Array:
    return graph.merge(params, rest).head_kernel()


class RoleModel:
    """A model split once into structure and weights, the weights spread over the role's mesh.

    Args:
        role: for messages; `reward.NAME` for one of several reward models.
        model: an NNX model; arrays that are in their place already are shared, not copied, and
            never overwritten.
        placement: where the role lives.
        offload: whether the weights wait in the hosts' memory until `wake`.
    """

    def __init__(self, role: str, model: Any, placement: Placement, *, offload: bool = False):
        self.role = role
        self.placement = placement
        self.vocab_size: int = model.config.vocab_size
        self.adapted = has_adapters(model)
        # Under adapters the backbone is among the rest: it is neither trained nor saved.
        self.graph, params, rest = take_apart(model, trained_part(model))
        self.params = placement.put(params)
        self.rest = placement.put(rest)
        self.shardings = placement.shardings(params)
        self.offload = offload
        self._waiting: Any = None
        if offload:
            self.park()

    @property
    def awake(self) -> bool:
        """Whether the weights are on the devices."""
        return not self.offload or jax.tree.leaves(self.params)[0].sharding.memory_kind != HOST

    def wake(self) -> None:
        """Bring the weights to the devices, where they wait on the host."""
        if not self.awake:
            self._waiting, self.params = self.params, jax.device_put(self.params, self.shardings)

    def park(self) -> None:
        """Send the weights to the host, where the role is to wait there."""
        if self.offload and self.awake:
            # What came from the host and was not changed needs no way back.
            if self._waiting is None:
                self._waiting = jax.device_put(self.params, on_host(self.shardings))
            self.params = self._waiting
        self._waiting = None

    def model(self) -> Any:
        """The model with the present weights."""
        self.wake()
        return self.graph.merge(self.params, self.rest)

    def head_kernel(self) -> jax.Array:
        """`[D, V]`: the present head of a language model."""
        params = in_place(self.params, self.shardings)
        return _head_kernel(self.graph, params, self.rest)

    def held(self) -> Any:
        """All arrays, only to look at."""
        return self.params, self.rest

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold."""
        return {"params": self.params}

    def restore(self, state: dict[str, Any]) -> None:
        """Take the weights of `state`."""
        same_structure(self.state(), state, str(self.role))
        self.take(state["params"])

    def take(self, params: Any) -> None:
        """Other weights of the same model, from wherever they are."""
        self._waiting = None
        self.params = self.placement.put(params)
        self.park()
