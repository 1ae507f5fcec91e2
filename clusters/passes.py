"""Passes over whole mini-batches: sequences in, packed rows through a model, sequences out."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from ..models import ModelConfig, to_host
from ..registry import ZootomyError
from .ahead import Ahead
from .config import ClusterConfig
from .outputs import ModelOutputs, Split, Wanted
from .packer import Packer
from .packing import MicroBatch
from .programs import LossFunction, Total, accumulate, forward, measure
from .role_model import RoleModel
from .runner import compiling, running
from .sequences import Sequences
from .shapes import Shape, branched, row_shapes
from .shared import ValueHead
from .trained import TrainedModel

Learning = TrainedModel | ValueHead
AnyModel = RoleModel | ValueHead
_MANY_LOSSES = 16
# On a CPU the rows of a micro-batch go through in parts of about this many tokens. What a part
# leaves in memory is used again by the next, and fits the caches better; fresh memory for all
# rows at once costs a fifth of the time of a training pass, in page faults.
_CPU_TOKENS = 768
# A pass without gradient leaves little, and its products are faster over more rows.
_CPU_TOKENS_FORWARD = 1536


@dataclass(frozen=True)
class UpdateResult:
    """What an optimizer step did.

    Attributes:
        loss: of the mini-batch.
        grad_norm: global norm of the gradient before clipping.
        lr: the learning rate of this step.
        metrics: name -> (sum, weight), added up over the micro-batches.
        micro_batches: number of forward and backward passes.
    """

    loss: float
    grad_norm: float
    lr: float
    metrics: dict[str, tuple[float, float]]
    micro_batches: int


class Passes:
    """Runs models over sequences in rows of a few shapes.

    Args:
        config: mesh and row shapes.
        row_length: L, tokens a row.
        sizes: of the actor: token ids are checked against V, since a gather would not complain, and
            D sets the length at which attention costs as much as the projections.
        shared: P and G, tokens of the longest prompt and completions that share one; None: each
            completion stands with a prompt of its own.
    """

    def __init__(
        self,
        config: ClusterConfig,
        row_length: int,
        sizes: ModelConfig,
        shared: tuple[int, int] | None = None,
    ):
        # What does not divide over the devices is filled up with rows and tokens of padding.
        parts = config.row_parts(), config.length_parts()

        def shapes(rows: int) -> list[Shape]:
            plain = row_shapes(rows, row_length, config.row_shapes, *parts)
            usual = branched(plain[0], *shared, parts[0]) if shared else None
            return [usual, *plain] if usual else plain

        micro_rows, forward_rows = config.rows(row_length), config.rows_forward(row_length)
        self._whole_shapes = [Shape(micro_rows, row_length)]
        self._update_shapes = shapes(micro_rows)
        self._forward_shapes = shapes(forward_rows)
        self._pack = Packer(config.sequences_per_row, sizes)
        self._losses: set[LossFunction] = set()
        self.ahead = Ahead()
        self._runner = running(self.ahead)
        self._at_work: AnyModel | None = None

    def compiling(self) -> Passes:
        """The same passes, compiled and not run, in the thread of `ahead`."""
        other = copy.copy(self)
        other._runner = compiling(self.ahead)
        return other

    def run(self, program: Callable[..., Any], *arguments: Any) -> Any:
        """What a compiled function of arrays on the host gives."""
        return self._runner.run(program, *arguments)

    def forward(
        self, model: AnyModel, sequences: Sequences, temperature: float, wanted: Wanted
    ) -> dict[str, np.ndarray]:
        """A pass without gradient; results `[N, ...]` float32 by their name in `ModelOutputs`."""
        micros = self._pack(sequences, self._forward_shapes)
        scalar, _ = self._scalars(model, temperature, None)
        self.begin(model)
        place, outputs = model.placement, []
        with place.context():
            for micro in micros[: self._runner.most]:
                rows = place.rows(micro.rows)
                split = _split(micro, place.mesh, _CPU_TOKENS_FORWARD)
                found = self._runner.call(
                    forward, model.graph, model.params, model.rest, rows, scalar, wanted, split
                )
                outputs.append({k: x for k, x in found._asdict().items() if x is not None})
        return _unpack(micros, to_host(outputs), len(sequences))

    def measure(
        self,
        model: AnyModel,
        sequences: Sequences,
        batch: Any,
        function: Callable[[ModelOutputs, Any, Any], dict[str, jax.Array]],
        *,
        temperature: float,
        coefficients: Any,
        wanted: Wanted,
    ) -> dict[str, np.ndarray]:
        """A pass without gradient, and what a function makes of it; see `Cluster.measure`."""
        check_batch(batch, len(sequences))
        micros = self._pack(sequences, self._forward_shapes)
        scalars = self._scalars(model, temperature, coefficients)
        self.begin(model)
        place, outputs = model.placement, []
        with place.context():
            for micro in micros[: self._runner.most]:
                rows, part = place.rows((micro.rows, micro.gather(batch)))
                found = self._runner.call(
                    measure, model.graph, function, wanted, model.params, model.rest, rows, part,
                    *scalars, split=_split(micro, place.mesh, _CPU_TOKENS_FORWARD),
                )  # fmt: skip
                outputs.append(found)
        return _unpack(micros, to_host(outputs), len(sequences))

    def update(
        self,
        model: Learning,
        sequences: Sequences,
        batch: Any,
        loss: LossFunction,
        *,
        temperature: float,
        coefficients: Any,
        wanted: Wanted,
        whole: bool,
        beside: Callable[[], object] | None,
    ) -> UpdateResult:
        """One optimizer step on a mini-batch; see `Cluster.update`."""
        check_batch(batch, len(sequences))
        model.check_horizon()
        self._count(loss)
        micros = self._pack(sequences, self._whole_shapes if whole else self._update_shapes)
        self._runner.before_update(model)
        total, results = self.gradient(
            model,
            micros,
            batch,
            loss,
            temperature=temperature,
            coefficients=coefficients,
            wanted=wanted,
            whole=whole,
        )
        lr = float(np.asarray(model.schedule(model.steps)))
        if beside is not None:
            beside()
        with model.placement.context():
            report = self._runner.step(model, total)
        results = to_host(results)
        if not report.applied:
            raise model.complain(report, _where(micros, [value for value, _ in results]))
        return UpdateResult(
            loss=float(report.loss),
            grad_norm=float(report.grad_norm),
            lr=lr,
            metrics=merge_metrics([metrics for _, metrics in results]),
            micro_batches=len(micros),
        )

    def gradient(
        self,
        model: Learning,
        micros: list[MicroBatch],
        batch: Any,
        loss: LossFunction,
        *,
        temperature: float,
        coefficients: Any,
        wanted: Wanted,
        whole: bool = False,
    ) -> tuple[Total, list[Any]]:
        """The loss and gradient of a mini-batch, summed; and (loss, metrics) a micro-batch."""
        scalars = self._scalars(model, temperature, coefficients)
        self.begin(model)
        place, results = model.placement, []
        # A single micro-batch needs no sum, nor its program.
        total = self._runner.zeros(model) if len(micros) > 1 else None
        places = tuple(jax.tree.leaves(model.places)) if place.mesh.size > 1 else None
        with place.context():
            for micro in micros[: self._runner.most]:
                rows, part = place.rows((micro.rows, micro.gather(batch)))
                total, value, metrics = self._runner.call(
                    accumulate, model.graph, loss, wanted, model.params, model.rest, total, rows,
                    part, *scalars, split=_split(micro, place.mesh, _CPU_TOKENS, whole=whole),
                    places=places,
                )  # fmt: skip
                results.append((value, metrics))
        assert total is not None  # There is always a micro-batch.
        return total, results

    def begin(self, model: AnyModel | None) -> None:
        """A model goes to work: the one before it may leave the devices. None: all are idle."""
        if self._at_work is not None and self._at_work is not model:
            self._at_work.park()
        if model is not None:
            model.wake()
        self._at_work = model

    def _count(self, loss: LossFunction) -> None:
        self._losses.add(loss)
        if len(self._losses) == _MANY_LOSSES:
            warnings.warn(
                f"update was given {_MANY_LOSSES} different loss functions, and each is compiled "
                "anew; make the function once, and pass what changes as coefficients.",
                stacklevel=4,
            )

    def _scalars(
        self, model: AnyModel, temperature: float, coefficients: Any
    ) -> tuple[jax.Array, Any]:
        if not 0 < temperature < float("inf"):
            raise ZootomyError(
                f"temperature must be positive, got {temperature}; greedy tokens are scored at 1."
            )
        values = jax.tree.map(
            lambda x: x if isinstance(x, jax.Array) else np.asarray(x, np.float32), coefficients
        )
        return model.placement.whole((np.float32(temperature), values))


def _split(micro: MicroBatch, mesh: Mesh, cpu_tokens: int, *, whole: bool = False) -> Split:
    """How a micro-batch is cut on its device; rows that are spread over several are not."""
    if mesh.size > 1:
        return Split()
    if whole or mesh.devices.flat[0].platform != "cpu":
        return Split(vocabulary=True)
    rows, length = micro.rows.tokens.shape
    divisors = (n for n in range(1, rows + 1) if rows % n == 0)
    parts = next((n for n in divisors if rows // n * length <= cpu_tokens), rows)
    return Split(parts, vocabulary=True)


def check_batch(batch: Any, n: int) -> None:
    """Check that every leaf of a batch speaks of n sequences.

    Raises:
        ZootomyError: it names the leaf.
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(batch)
    for path, leaf in leaves:
        shape = np.shape(leaf)
        if not shape or shape[0] != n:
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            raise ZootomyError(
                f"The batch entry {name!r} has shape {shape}; its first axis must be the {n} "
                "sequences."
            )


def _unpack(
    micros: list[MicroBatch], outputs: list[dict[str, np.ndarray]], n: int
) -> dict[str, np.ndarray]:
    """Results `[M, ...]` of each micro-batch to `[N, ...]`, by name."""
    results = {}
    for name, first in outputs[0].items():
        results[name] = np.zeros((n, *first.shape[1:]), first.dtype)
        for micro, output in zip(micros, outputs, strict=False):  # Compiling has the first alone.
            micro.scatter(output[name], results[name])
    return results


def merge_metrics(parts: list[Mapping[str, tuple[Any, Any]]]) -> dict[str, tuple[float, float]]:
    """Sums and weights of the micro-batches; one of weight 0 says nothing, whatever its sum."""
    merged = {}
    for name in parts[0]:
        pairs = [(float(part[name][0]), float(part[name][1])) for part in parts]
        said = [pair for pair in pairs if pair[1] != 0]
        merged[name] = (sum(value for value, _ in said), sum(weight for _, weight in said))
    return merged


def _where(micros: list[MicroBatch], losses: list[Any]) -> str:
    """Which sequences a loss that is not finite comes from, as near as is known."""
    for micro, loss in zip(micros, losses, strict=True):
        if not np.isfinite(loss):
            ids = sorted(int(n) for n in micro.sequence_ids if n >= 0)
            return f", in the micro-batch of the sequences {ids}"
    return ""
