"""Checkpoints of a run: arrays and plain data, written by Orbax, whole or not at all."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from ..registry import ZootomyError
from .naming import from_named, named_leaves, same_structure


@dataclass(frozen=True)
class ClusterState:
    """All that a cluster needs to go on as if it had not been interrupted.

    Attributes:
        arrays: role -> weights and optimizer state.
        counters: plain numbers: the weights' version, the steps of each optimizer.
    """

    arrays: dict[str, Any]
    counters: dict[str, Any]


class Checkpoints:
    """The checkpoints of a run in one folder.

    A checkpoint is written beside its place and renamed when it is whole, so that a run that is
    killed leaves the former ones as they were and nothing that could be taken for a new one.

    Args:
        folder: made if it does not exist.
        keep: how many of the newest to keep; None keeps all.
        asynchronous: write while the run goes on; `close` waits for the end.
    """

    def __init__(self, folder: str | Path, *, keep: int | None = 3, asynchronous: bool = False):
        if keep is not None and keep < 1:
            raise ZootomyError(f"keep must be at least 1 (or None for all), got {keep}.")
        self.folder = Path(folder).expanduser().absolute()
        self._manager = ocp.CheckpointManager(
            self.folder,
            # Without these a manager that has saved nothing yet cannot describe what it finds.
            item_handlers={
                "arrays": ocp.StandardCheckpointHandler(),
                "record": ocp.JsonCheckpointHandler(),
            },
            options=ocp.CheckpointManagerOptions(
                max_to_keep=keep, create=True, enable_async_checkpointing=asynchronous
            ),
        )

    def save(self, step: int, arrays: Any, record: dict[str, Any]) -> None:
        """Write a checkpoint.

        Args:
            step: its number; higher than that of any before.
            arrays: a tree of arrays, e.g. `ClusterState.arrays`.
            record: plain data that JSON can hold: counters, cursors, controllers, the config.

        Raises:
            ZootomyError: for a step that is not higher, or a record that JSON would change.
        """
        latest = self.latest()
        if latest is not None and step <= latest:
            raise ZootomyError(
                f"Step {step} cannot be saved: {self.folder} holds step {latest} already."
            )
        try:
            kept = json.loads(json.dumps(record, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise ZootomyError(
                f"The record of a checkpoint must be plain data: {error}."
            ) from error
        if kept != record:
            raise ZootomyError(
                "The record of a checkpoint must come back from JSON as it was: use text as keys, "
                "and lists in place of tuples."
            )
        self._manager.save(
            step,
            args=ocp.args.Composite(
                arrays=ocp.args.StandardSave(named_leaves(arrays)),
                record=ocp.args.JsonSave(record),
            ),
        )

    def steps(self) -> list[int]:
        """The steps of the whole checkpoints, oldest first."""
        return sorted(self._manager.all_steps())

    def latest(self) -> int | None:
        """The step of the newest whole checkpoint; None if there is none."""
        return self._manager.latest_step()

    def record(self, step: int | None = None) -> dict[str, Any]:
        """The plain data of a checkpoint, without its arrays; None: the newest."""
        step = self._existing(step)
        restored = self._manager.restore(
            step, args=ocp.args.Composite(record=ocp.args.JsonRestore())
        )
        return restored["record"]

    def restore(self, like: Any, step: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Read a checkpoint.

        Args:
            like: a tree of arrays as they are in this run (`cluster.state().arrays`): gives the
                structure, and on which devices the arrays are to lie.
            step: which one; None: the newest.

        Returns:
            The arrays in the structure of `like`, and the record.

        Raises:
            ZootomyError: if there is no such checkpoint, or it is of another model, optimizer or
                set of roles; the message names the first array that differs.
        """
        step = self._existing(step)
        saved = self._manager.item_metadata(step)["arrays"]
        if saved is None:
            raise ZootomyError(
                f"The checkpoint of step {step} in {self.folder} is damaged: its arrays cannot be "
                f"listed. Give another step: {', '.join(map(str, self.steps()))}."
            )
        same_structure(like, dict(saved), f"checkpoint of step {step} in {self.folder}")
        wanted = {
            name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
            for name, leaf in named_leaves(like).items()
        }
        restored = self._manager.restore(
            step,
            args=ocp.args.Composite(
                arrays=ocp.args.StandardRestore(wanted), record=ocp.args.JsonRestore()
            ),
        )
        return from_named(like, restored["arrays"]), restored["record"]

    def close(self) -> None:
        """Wait for what is being written, and let go of the folder."""
        self._manager.wait_until_finished()
        self._manager.close()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _existing(self, step: int | None) -> int:
        steps = self.steps()
        if not steps:
            raise ZootomyError(f"There is no checkpoint in {self.folder}.")
        if step is None:
            return steps[-1]
        if step not in steps:
            raise ZootomyError(
                f"There is no checkpoint of step {step} in {self.folder}; there are "
                f"{', '.join(map(str, steps))}."
            )
        return step
