"""One tiny model, ragged sequences and plain losses for all tests of the cluster."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from zootomy.clusters import Cluster, ClusterConfig, OptimizerConfig, Sequences
from zootomy.models import Decoder, ModelConfig, ValueModel

# Helper modules stand beside the tests.
sys.path.insert(0, str(Path(__file__).parent))

VOCAB, WIDTH = 11, 5
TINY = ModelConfig(
    vocab_size=VOCAB,
    hidden_size=8,
    intermediate_size=16,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    initializer_range=0.5,
)
# Few settings, each used by many tests: programs are shared, and compiling them takes the time.
PLAIN_SGD = OptimizerConfig(name="sgd", learning_rate=1.0, max_grad_norm=None)
ADAM = OptimizerConfig(learning_rate=0.02, schedule="linear", weight_decay=0.1)


def weighted_logp(outputs, batch, coefficients):
    """-Σ w logp: the weights carry every denominator."""
    weights = batch["weights"]
    loss = -jnp.sum(jnp.where(weights > 0, weights * outputs.logp, 0.0))
    return coefficients["scale"] * loss, {"actions": ((weights > 0).sum(), 1.0)}


def squared_values(outputs, batch, coefficients):
    """Σ w (V - 1)²."""
    del coefficients
    weights = batch["weights"]
    return jnp.sum(jnp.where(weights > 0, weights * (outputs.values - 1) ** 2, 0.0)), {}


def nan_gradient(outputs, batch, coefficients):
    """0, but its slope is infinite."""
    del batch, coefficients
    return jnp.sqrt(outputs.logp * 0).sum(), {}


class Kit(NamedTuple):
    """What the tests share."""

    config: ModelConfig
    width: int
    adam: OptimizerConfig

    weighted_logp = staticmethod(weighted_logp)
    squared_values = staticmethod(squared_values)
    nan_gradient = staticmethod(nan_gradient)

    def decoder(self, seed=0, **changes):
        return Decoder(dataclasses.replace(self.config, **changes), rngs=nnx.Rngs(seed))

    def critic(self, seed=1):
        critic = ValueModel(self.config, rngs=nnx.Rngs(seed))
        critic.score.kernel[...] = jnp.linspace(-1.0, 1.0, 8)[:, None]
        return critic

    def sequences(self, prompts, completions, seed=0):
        """Random tokens of the given lengths."""
        rng = np.random.default_rng(seed)

        def draw(lengths):
            return [rng.integers(0, VOCAB, length) for length in lengths]

        return Sequences(draw(prompts), draw(completions), self.width)

    def cluster(self, rows=2, length=21, per_row=4, *, optimizer=PLAIN_SGD, **options):
        options = {"actor": self.decoder(), "total_steps": 10, **options}
        where = ("mesh", "role_to_mesh", "axis_rules", "role_to_dtype", "offload_to_cpu")
        placed = {name: options.pop(name) for name in where if name in options}
        config = ClusterConfig(
            micro_rows=rows, row_length=length, sequences_per_row=per_row, **placed
        )
        return Cluster(config, optimizer=optimizer, **options)

    def update(self, cluster, sequences, role="actor", loss=weighted_logp, scale=1.0, **options):
        batch = {"weights": sequences.mask / max(1.0, sequences.mask.sum())}
        return cluster.update(
            role, sequences, batch, loss, coefficients={"scale": scale}, **options
        )


@pytest.fixture(scope="session")
def kit():
    return Kit(TINY, WIDTH, ADAM)


@pytest.fixture(scope="session")
def ragged(kit):
    """Seven sequences, 17 actions: a completion of one token, one of none, one as wide as T."""
    return kit.sequences([3, 5, 2, 4, 1, 2, 6], [1, 5, 4, 0, 3, 1, 3])
