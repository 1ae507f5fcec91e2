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
from tiny_run import ADAM, TINY, VOCAB
from zootomy import ClusterConfig, Role
from zootomy.clusters import pack, passes
from zootomy.clusters.config import data_mesh
from zootomy.clusters.programs import Total, compute, forward
from zootomy.clusters.trained import TrainedModel
from zootomy.learners import update
from zootomy.models import Decoder, ValueModel

# Name -> devices, rows of a micro-batch, tokens a row, sequences a row. All have eight slots for
# sequences, since each shape that the blocks see is compiled operation by operation.
LAYOUTS = {
    "one a row": (1, 8, 8, 1),
    "packed": (1, 2, 16, 4),
    "micro-batches": (1, 2, 5, 4),
    "4 devices": (4, 8, 8, 1),
}


@functools.partial(jax.jit, static_argnames=("graph", "wanted"))
def _pull_back(graph, wanted, params, rest, total, rows, temperature, cotangent):
    """The total with the gradient by the weights, from that by the model's outputs."""
    back = jax.vjp(lambda p: compute(graph, p, rest, rows, temperature, wanted), params)[1]
    return jax.tree.map(lambda t, g: t + g.astype(t.dtype), total, back(cotangent)[0])


def accumulate(
    graph, loss, wanted, params, rest, total, rows, batch, temperature, coefficients
):  # fmt: skip
    """What `clusters.programs.accumulate` computes, in two halves."""
    outputs = forward(graph, params, rest, rows, temperature, wanted)
    (value, metrics), by_outputs = jax.value_and_grad(loss, has_aux=True)(
        outputs, batch, coefficients
    )
    past = np.arange(rows.index.shape[1]) >= np.asarray(rows.lengths)[:, None]
    for name, x in by_outputs._asdict().items():
        if np.shape(x) == past.shape:
            assert (np.asarray(x)[past] == 0).all(), f"{name} past a completion's end"
    gradients = _pull_back(
        graph, wanted, params, rest, total.gradients, rows, temperature, by_outputs
    )
    return Total(gradients, total.loss + value), value, metrics


def use(monkeypatch):
    """Let learners train in halves."""
    whole = update._programs

    def uncompiled(algorithm, blocks):
        made = whole(algorithm, blocks)
        return made._replace(
            experience=made.experience.__wrapped__, weights=made.weights.__wrapped__
        )

    monkeypatch.setattr(passes, "accumulate", accumulate)
    monkeypatch.setattr(update, "_programs", uncompiled)


class Update(NamedTuple):
    """An optimizer step of a role: what it was given, and the weights before it."""

    role: Role
    params: dict
    sequences: object
    batch: object
    loss: object
    settings: dict


def record(cluster):
    """The list to which a cluster's further updates are added."""
    seen = []
    inner = cluster._passes.update

    def recorded(model, sequences, batch, loss, **settings):
        # Lent weights are not overwritten by the step.
        seen.append(Update(model.role, model.lend_params(), sequences, batch, loss, settings))
        return inner(model, sequences, batch, loss, **settings)

    cluster._passes.update = recorded
    return seen


class Layout:
    """Passes in one layout of rows and devices."""

    def __init__(self, devices, rows, row_length, per_row):
        mesh = data_mesh(devices)
        config = ClusterConfig(
            role_to_mesh={Role.ACTOR: mesh}, micro_rows=rows, sequences_per_row=per_row
        )
        self.shape = (rows, row_length, per_row)
        self.passes = passes.Passes(config, row_length, VOCAB)
        actor = Decoder(TINY, rngs=nnx.Rngs(0))
        critic = ValueModel.from_decoder(actor, rngs=nnx.Rngs(1))
        self.models = {
            role: TrainedModel(role, model, mesh, ADAM, 1)
            for role, model in ((Role.ACTOR, actor), (Role.CRITIC, critic))
        }

    def gradient(self, done: Update):
        """`(gradient by the name of a weight, loss, micro-batches)` of an update, done again."""
        model = self.models[done.role]
        model.params = jax.device_put(done.params, model.replicated)
        micros = pack(done.sequences, *self.shape)
        total, _ = self.passes.gradient(model, micros, done.batch, done.loss, **done.settings)
        named = jax.tree_util.tree_leaves_with_path(jax.device_get(total.gradients))
        found = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in named}
        return found, float(total.loss), len(micros)


@functools.cache
def layouts():
    """Every layout by its name."""
    return {name: Layout(*shape) for name, shape in LAYOUTS.items()}
