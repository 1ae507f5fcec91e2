"""Checkpoints of a run: arrays and plain data, written by Orbax, whole or not at all."""

from __future__ import annotations

import json
import math
import os
import shutil
import threading
import warnings
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp

from ..models import from_first, is_first
from ..registry import ZootomyError
from .naming import from_named, named_leaves, same_structure
from .saved import as_before, to_save, wanted
from .seal import damage, read_seal, write_seal
from .trouble import WRITE_ERRORS, nothing_whole, one_sentence, quiet_orbax

UNFINISHED = "unfinished"
DAMAGED = ".damaged"


class Checkpoints:
    """The checkpoints of a run in one folder, a folder named by its step each.

    A checkpoint is written in `unfinished/`, sealed with the checksums of its files, and renamed
    into its place: a run that is killed, or a disk that is full, leaves the former ones as they
    were and nothing that could be taken for a new one. Old ones go only when a new one is in place.

    Args:
        folder: made if it does not exist.
        keep: how many of the newest to keep; None keeps all.
        keep_best: how many of those with the highest score to keep beside them.
        asynchronous: write while the run goes on; what went wrong is raised by the next `save`,
            by `wait` or by `close`.

    Raises:
        ZootomyError: for a number out of range, or a folder that cannot be made.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        keep: int | None = 3,
        keep_best: int = 0,
        asynchronous: bool = False,
    ):
        if keep is not None and keep < 1:
            raise ZootomyError(f"keep must be at least 1 (or None for all), got {keep}.")
        if keep_best < 0:
            raise ZootomyError(f"keep_best must be 0 or more, got {keep_best}.")
        self.folder = Path(folder).expanduser().absolute()
        self._keep, self._keep_best, self._asynchronous = keep, keep_best, asynchronous
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ZootomyError(
                f"The folder {self.folder} for checkpoints cannot be made: {error.strerror}."
            ) from error
        quiet_orbax()
        self._orbax = ocp.AsyncCheckpointer(
            ocp.CompositeCheckpointHandler(
                arrays=ocp.StandardCheckpointHandler(), record=ocp.JsonCheckpointHandler()
            )
        )
        self._thread: threading.Thread | None = None
        self._error: ZootomyError | None = None

    def save(
        self, step: int, arrays: Any, record: dict[str, Any], *, score: float | None = None
    ) -> None:
        """Write a checkpoint.

        Args:
            step: its number; higher than that of any before.
            arrays: a tree of arrays, e.g. `ClusterState.arrays`.
            record: plain data that JSON can hold: counters, cursors, controllers, the config.
            score: how good it is, for `keep_best`; None: it cannot be the best.

        Raises:
            ZootomyError: for a step that is not higher, a record that JSON would change, or a
                checkpoint, this one or the one before, that could not be written: those that were
                there before are still there.
        """
        self.wait()
        latest = self.latest()
        if latest is not None and step <= latest:
            raise ZootomyError(
                f"Step {step} cannot be saved: {self.folder} holds step {latest} already."
            )
        _check_record(record)
        scored = None if score is None or not math.isfinite(score) else float(score)
        try:
            self._orbax.save(
                self.folder / UNFINISHED / str(step),
                args=ocp.args.Composite(
                    arrays=ocp.args.StandardSave(to_save(named_leaves(arrays))),
                    record=ocp.args.JsonSave(record),
                ),
                # What a run that was killed left of this step is in the way.
                force=True,
            )
        except WRITE_ERRORS as error:
            raise self._failed(step, error) from error
        if self._asynchronous:
            self._thread = threading.Thread(target=self._finish, args=(step, scored))
            self._thread.start()
        else:
            self._finish(step, scored)
            self.wait()

    def wait(self) -> None:
        """Wait until what is being written is in place.

        Raises:
            ZootomyError: if it could not be written.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def steps(self) -> list[int]:
        """The steps of the checkpoints that are in place, oldest first; some may be damaged."""
        try:
            names = [path.name for path in self.folder.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ZootomyError(f"{self.folder} cannot be read: {error.strerror}.") from error
        return sorted(int(name) for name in names if name.isdecimal())

    def latest(self) -> int | None:
        """The step of the newest checkpoint in place; None if there is none."""
        return max(self.steps(), default=None)

    def best(self) -> int | None:
        """The step of the checkpoint with the highest score, the newest of equals; None if none."""
        return next(iter(self._by_score()), None)

    def damage(self, step: int) -> str | None:
        """What is wrong with a checkpoint, in words; None where it is as it was written."""
        return damage(self.folder / str(self._existing(step)))

    def newest_whole(self) -> tuple[int | None, dict[int, str]]:
        """The newest checkpoint that is as it was written.

        Returns:
            Its step (None if there is none), and what is wrong with each newer one.
        """

        def look() -> bytes:
            broken = []
            for step in reversed(self.steps()):
                wrong = damage(self.folder / str(step))
                if wrong is None:
                    return json.dumps([step, broken]).encode()
                broken.append((step, wrong))
            return json.dumps([None, broken]).encode()

        found, broken = json.loads(from_first(look))
        return found, dict(broken)

    def set_aside(self, step: int) -> Path:
        """Rename a damaged checkpoint, so that its step can be saved again; returns where it is."""
        target = self.folder / f"{step}{DAMAGED}"
        if is_first():
            source = self.folder / str(self._existing(step))
            shutil.rmtree(target, ignore_errors=True)
            source.rename(target)
        return target

    def record(self, step: int | None = None) -> dict[str, Any]:
        """The plain data of a checkpoint, without its arrays; None: the newest whole one."""
        path = self.folder / str(self._chosen(step))
        wanted = ocp.args.Composite(record=ocp.args.JsonRestore())
        return self._orbax.restore(path, args=wanted)["record"]

    def restore(self, like: Any, step: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Read a checkpoint, onto whatever devices; it may have been written from others.

        Args:
            like: a tree of arrays as they are in this run (`cluster.state().arrays`), or of
                `jax.ShapeDtypeStruct` with shardings: gives the structure, and where the arrays
                are to lie.
            step: which one; None: the newest that is not damaged, with a warning that names those
                which are.

        Returns:
            The arrays in the structure of `like`, and the record.

        Raises:
            ZootomyError: if there is no such checkpoint, it is damaged, or of another model,
                optimizer or set of roles; the message names the first array that differs.
        """
        step = self._chosen(step)
        path = self.folder / str(step)
        items: Any = self._orbax.metadata(path).item_metadata
        saved = items["arrays"]
        same_structure(like, dict(saved), f"checkpoint of step {step} in {self.folder}")
        named = named_leaves(like)
        restored = self._orbax.restore(
            path,
            args=ocp.args.Composite(
                arrays=ocp.args.StandardRestore(wanted(named)), record=ocp.args.JsonRestore()
            ),
        )
        arrays = as_before(named, dict(restored["arrays"]))
        return from_named(like, arrays), restored["record"]

    def close(self) -> None:
        """Wait for what is being written, and let go of the folder."""
        try:
            self.wait()
        finally:
            self._orbax.close()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _finish(self, step: int, score: float | None) -> None:
        """Seal what Orbax has written, and put it in its place."""
        try:
            self._orbax.wait_until_finished()
            if is_first():
                draft = self.folder / UNFINISHED / str(step)
                write_seal(draft, {"step": step, "score": score})
                os.replace(draft, self.folder / str(step))
                self._prune()
        except WRITE_ERRORS as error:
            self._error = self._failed(step, error)

    def _prune(self) -> None:
        """Remove what is neither among the newest nor the best, and what killed runs have left."""
        drafts = self.folder / UNFINISHED
        if self._keep is not None:
            kept = {*self.steps()[-self._keep :], *self._by_score()[: self._keep_best]}
            for step in set(self.steps()) - kept:
                # One that is half removed must not be taken for one that is damaged.
                os.replace(self.folder / str(step), drafts / f"old-{step}")
        shutil.rmtree(drafts)

    def _by_score(self) -> list[int]:
        """Steps with a score, the best first."""
        seals = {step: read_seal(self.folder / str(step)) for step in self.steps()}
        scored = [
            (seal["score"], step)
            for step, seal in seals.items()
            if seal is not None and seal.get("score") is not None
        ]
        return [step for _, step in sorted(scored, reverse=True)]

    def _failed(self, step: int, error: Exception) -> ZootomyError:
        there = ", ".join(map(str, self.steps()))
        rest = f"The earlier ones are as they were (steps {there})" if there else "It has no other"
        return ZootomyError(
            f"The checkpoint of step {step} could not be written to {self.folder}: "
            f"{one_sentence(error, self.folder)}. {rest}; mend that, and resume the run."
        )

    def _chosen(self, step: int | None) -> int:
        if step is not None:
            self._existing(step)
            wrong = self.damage(step)
            if wrong is not None:
                raise ZootomyError(
                    f"The checkpoint of step {step} in {self.folder} is damaged: {wrong}. "
                    f"Choose another of the steps {', '.join(map(str, self.steps()))}."
                )
            return step
        self._existing(None)
        found, broken = self.newest_whole()
        if found is None:
            raise ZootomyError(nothing_whole(self.folder, broken))
        for other, wrong in broken.items():
            warnings.warn(
                f"The checkpoint of step {other} in {self.folder} is damaged: {wrong}. That of "
                f"step {found} is used.",
                stacklevel=3,
            )
        return found

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


def _check_record(record: dict[str, Any]) -> None:
    try:
        kept = json.loads(json.dumps(record, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ZootomyError(f"The record of a checkpoint must be plain data: {error}.") from error
    if kept != record:
        raise ZootomyError(
            "The record of a checkpoint must come back from JSON as it was: use text as keys, "
            "and lists in place of tuples."
        )
