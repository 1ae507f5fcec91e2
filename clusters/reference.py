"""The reference: the actor as it is given, or a model of its own."""

from __future__ import annotations

from typing import Literal

from jax.sharding import Mesh

from ..models import Decoder, has_adapters, without_deltas
from ..registry import ZootomyError
from .roles import Role
from .trained import RoleModel, TrainedModel


def make_reference(
    reference: Literal["none", "snapshot"] | Decoder,
    actor: TrainedModel,
    vocab_size: int,
    mesh: Mesh,
) -> RoleModel | None:
    """The reference of a cluster, or None.

    Args:
        reference: as of `Cluster`.
        actor: the policy; a snapshot shares its arrays, which its first step leaves to it.
        vocab_size: the actor's.
        mesh: where it lives.

    Raises:
        ZootomyError: for another word, or a model of another vocabulary.
    """
    if reference == "none":
        return None
    if reference == "snapshot":
        model: Decoder = actor.model()
        made = RoleModel(Role.REFERENCE, model, mesh)
        if has_adapters(model):
            made.params = without_deltas(actor.params)
        return made
    if isinstance(reference, str):
        allowed = "'none', 'snapshot' or a model"
        raise ZootomyError(f"reference must be {allowed}, got {reference!r}.")
    check_vocabulary("reference", reference.config.vocab_size, vocab_size)
    return RoleModel(Role.REFERENCE, reference, mesh)


def check_vocabulary(who: str, vocab_size: int, actors: int) -> None:
    """Refuse a model of another vocabulary than the actor's.

    Raises:
        ZootomyError: with both sizes.
    """
    if vocab_size != actors:
        raise ZootomyError(
            f"The {who} has a vocabulary of {vocab_size} tokens, the actor of "
            f"{actors}; they must share a tokenizer."
        )
