"""A training pass in two halves, so that hundreds of algorithms can be trained in a test.

A run compiles the model together with the algorithm's blocks: seconds for each algorithm. Here the
model's half is compiled once for all of them, and the blocks' half runs uncompiled:

    outputs = model(weights),  g = d loss(outputs) / d outputs,  gradient = gᵀ · d model / d weights

All else (collecting, packing, sharding, experience, mini-batches, optimizer) is the run's own.
"""

import functools
from typing import NamedTuple

import jax
import numpy as np
from flax import nnx
from tiny_run import ADAM, TINY
from zootomy import ClusterConfig, Role
from zootomy.clusters import Shape, pack, passes
from zootomy.clusters.outputs import compute
from zootomy.clusters.programs import Total, forward, no_gradient
from zootomy.clusters.trained import TrainedModel
from zootomy.learners import update
from zootomy.models import Decoder, ValueModel

# Name -> devices, rows of a micro-batch, tokens a row, sequences a row. The learner itself has one
# sequence in each of eight rows. All have eight slots for sequences, since each shape that the
# blocks see is compiled operation by operation.
LAYOUTS = {
    "packed, on 4 devices": (4, 4, 8, 2),
    "packed, in micro-batches": (1, 2, 8, 4),
}


@functools.partial(jax.jit, static_argnames=("graph", "wanted", "split"))
def _pull_back(graph, wanted, split, params, rest, total, rows, temperature, cotangent):
    """The total with the gradient by the weights, from that by the model's outputs."""
    back = jax.vjp(lambda p: compute(graph, p, rest, rows, temperature, wanted, split), params)[1]
    return jax.tree.map(lambda t, g: t + g.astype(t.dtype), total, back(cotangent)[0])


# One program, and arrays of the model's places, as of a total that was made before.
_nothing = jax.jit(no_gradient)


def accumulate(
    graph, loss, wanted, params, rest, total, rows, batch, temperature, coefficients, *, split,
    places,
):  # fmt: skip
    """What `clusters.programs.accumulate` computes, in two halves."""
    del places  # The sum is, as the weights are, whole on every device.
    assert split.parts == 1
    outputs = forward(graph, params, rest, rows, temperature, wanted, split)
    (value, metrics), by_outputs = jax.value_and_grad(loss, has_aux=True)(
        outputs, batch, coefficients
    )
    past = np.arange(rows.actions.shape[1]) >= np.asarray(rows.lengths)[:, None]
    for name, x in by_outputs._asdict().items():
        if np.shape(x) == past.shape:
            assert (np.asarray(x)[past] == 0).all(), f"{name} past a completion's end"
    total = _nothing(params) if total is None else total
    gradients = _pull_back(
        graph, wanted, split, params, rest, total.gradients, rows, temperature, by_outputs
    )
    return Total(gradients, total.loss + value), value, metrics


def measure(
    graph, function, wanted, params, rest, rows, batch, temperature, coefficients, *, split
):  # fmt: skip
    """What `clusters.programs.measure` computes, in two halves."""
    assert split.parts == 1
    outputs = forward(graph, params, rest, rows, temperature, wanted, split)
    return function(outputs, batch, coefficients)


def use(monkeypatch):
    """Let learners train in halves."""
    whole = update.programs_of

    def uncompiled(algorithm, blocks):
        made = whole(algorithm, blocks)
        return made._replace(
            experience=made.experience.__wrapped__, weights=made.weights.__wrapped__
        )

    monkeypatch.setattr(passes, "accumulate", accumulate)
    monkeypatch.setattr(passes, "measure", measure)
    monkeypatch.setattr(update, "programs_of", uncompiled)


class Update(NamedTuple):
    """An optimizer step of a role: the weights before it, what it was given, what it found."""

    role: Role
    params: dict
    sequences: object
    batch: object
    loss: object
    settings: dict
    gradient: dict[str, np.ndarray]
    value: float
    micros: list


def record(cluster):
    """The list to which a cluster's further updates are added."""
    seen, given = [], []
    passes_of = cluster._passes
    update, gradient = passes_of.update, passes_of.gradient

    def on_update(model, sequences, *arguments, **settings):
        given[:] = [sequences]
        return update(model, sequences, *arguments, **settings)

    def on_gradient(model, micros, batch, loss, **settings):
        # Lent weights are not overwritten by the step.
        before = model.lend_params()
        total, results = gradient(model, micros, batch, loss, **settings)
        found = _named(total.gradients)
        seen.append(
            Update(model.role, before, given[0], batch, loss, settings, found, float(total.loss),
                   micros)
        )  # fmt: skip
        return total, results

    passes_of.update, passes_of.gradient = on_update, on_gradient
    # Updates that are compiled ahead, by a copy of these passes, are none.
    cluster.compile_ahead = lambda work: None
    return seen


def _named(gradients):
    leaves = jax.tree_util.tree_leaves_with_path(jax.device_get(gradients))
    return {jax.tree_util.keystr(path): np.array(leaf) for path, leaf in leaves}


class Layout:
    """Passes in one layout of rows and devices."""

    def __init__(self, devices, rows, row_length, per_row):
        config = ClusterConfig(mesh=f"data={devices}", micro_rows=rows, sequences_per_row=per_row)
        self.shape = (Shape(rows, row_length), per_row)
        self.passes = passes.Passes(config, row_length, TINY)
        actor = Decoder(TINY, rngs=nnx.Rngs(0))
        critic = ValueModel.from_decoder(actor, rngs=nnx.Rngs(1))
        self.models = {
            role: TrainedModel(role, model, config.placement(role), ADAM, 1)
            for role, model in ((Role.ACTOR, actor), (Role.CRITIC, critic))
        }

    def gradient(self, done: Update):
        """`(gradient by the name of a weight, loss, micro-batches)` of an update, done again."""
        model = self.models[done.role]
        model.params = jax.device_put(done.params, model.placement.replicated)
        micros = pack(done.sequences, *self.shape)
        total, _ = self.passes.gradient(model, micros, done.batch, done.loss, **done.settings)
        return _named(total.gradients), float(total.loss), len(micros)


@functools.cache
def layouts():
    """Every layout by its name."""
    return {name: Layout(*shape) for name, shape in LAYOUTS.items()}
