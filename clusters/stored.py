"""Some of a checkpoint's arrays, for another run than the one that wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from .naming import same_structure

# Where `Checkpoints` keeps arrays within the folder of a step.
ARRAYS = "arrays"


def stored_arrays(folder: Path) -> dict[str, Any]:
    """Shape and dtype of each array of a checkpoint by its dotted name, without reading any.

    Args:
        folder: of one step.
    """
    with _reader() as reader:
        found: Any = reader.metadata(folder.absolute()).item_metadata
    return dict(found[ARRAYS].tree)


def read_stored(folder: Path, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    """Some arrays of a checkpoint, each in the dtype and the place that is asked for.

    Each device reads its part, whatever devices wrote them; others are not read at all.

    Args:
        folder: of one step.
        wanted: dotted name -> shape, dtype and sharding.

    Raises:
        ZootomyError: if one is not there, or has another shape.
    """
    stored, where = stored_arrays(folder), f"checkpoint {str(folder)!r}"
    there = {name: stored[name] for name in wanted if name in stored}
    # The dtype may change on the way.
    alike = {name: jax.ShapeDtypeStruct(x.shape, wanted[name].dtype) for name, x in there.items()}
    same_structure(dict(wanted), alike, where)
    asked = dict(wanted)
    some = ocp.args.PyTreeRestore(
        item=asked,
        restore_args=ocp.checkpoint_utils.construct_restore_args(asked),
        partial_restore=True,
    )
    with _reader() as reader:
        found = reader.restore(folder.absolute(), args=ocp.args.Composite(**{ARRAYS: some}))
    return dict(found[ARRAYS])


def _reader() -> ocp.Checkpointer:
    # The record is not read, but one without a handler would be warned of.
    handlers: Any = {ARRAYS: ocp.PyTreeCheckpointHandler(), "record": ocp.JsonCheckpointHandler()}
    return ocp.Checkpointer(ocp.CompositeCheckpointHandler(**handlers))
