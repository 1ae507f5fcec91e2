"""Rows spread over devices: the same numbers, and parameters on every device."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from zootomy import ZootomyError
from zootomy.clusters import ClusterConfig, OptimizerConfig, Role, data_mesh


@pytest.mark.parametrize("devices", [4])
def test_devices_change_nothing(kit, ragged, devices):
    clusters = [
        kit.cluster(8, 12, 3, role_to_mesh={Role.ACTOR: data_mesh(count)}, reference="snapshot")
        for count in (1, devices)
    ]
    before = [jax.device_get(c.state().arrays["actor"]["params"]) for c in clusters]
    results = []
    for cluster in clusters:
        old = cluster.log_probs("reference", ragged, temperature=0.7)["logp"]
        results.append((kit.update(cluster, ragged, temperature=0.7), old))
        # A second time: where the parameters lie after a step must not ask for new programs.
        kit.update(cluster, ragged, temperature=0.7, scale=0.0)
    (one, one_old), (many, many_old) = results
    np.testing.assert_allclose(many_old, one_old, atol=1e-6)
    assert many.loss == pytest.approx(one.loss, abs=1e-6)
    assert many.grad_norm == pytest.approx(one.grad_norm, rel=1e-6)
    after = [c.state().arrays["actor"]["params"] for c in clusters]
    for ours, theirs, start in zip(*map(jax.tree.leaves, (*after, before[0])), strict=True):
        assert theirs.sharding.is_fully_replicated
        assert len(theirs.sharding.device_set) == devices
        # Plain SGD at rate 1: what was moved is the gradient.
        np.testing.assert_allclose(start - theirs, start - ours, atol=1e-6)


def test_a_mesh_with_explicit_axes_is_taken_too():
    mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2])
    assert ClusterConfig(role_to_mesh={Role.ACTOR: mesh}).mesh().shape == {"data": 2}


@pytest.mark.parametrize(
    "settings, message",
    [
        (
            {"role_to_mesh": {Role.ACTOR: data_mesh(4)}, "micro_rows": 6},
            "micro_rows=6 does not divide over 4 devices on the 'data' axis; choose a multiple "
            "of 4.",
        ),
        (
            {"role_to_mesh": {Role.ACTOR: data_mesh(4), "rollout": data_mesh(2)}},
            "role_to_mesh puts actor and rollout on different meshes; for now all roles share "
            "one mesh: give each the same.",
        ),
        (
            {
                "role_to_mesh": {
                    Role.ACTOR: Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "tensor"))
                }
            },
            "The mesh axis 'tensor' has size 2; for now only 'data' can be larger than 1.",
        ),
        (
            {"role_to_mesh": {Role.ACTOR: Mesh(np.array(jax.devices()[:2]), ("x",))}},
            "The mesh has axes ('x',), but rows are spread over an axis 'data'; name one so "
            "(size 1 will do).",
        ),
        ({"role_to_mesh": {"actr": data_mesh(1)}}, "Unknown role 'actr'. Did you mean 'actor'?"),
        ({"micro_rows": 0}, "micro_rows must be an integer >= 1, got 0."),
    ],
)
def test_meshes_and_rows_that_cannot_be(settings, message):
    with pytest.raises(ZootomyError) as error:
        ClusterConfig(**settings)
    assert str(error.value).startswith(message)


def test_clusters_that_cannot_be(kit):
    for options, message in [
        (
            {"critic": kit.critic()},
            "A critic and critic_optimizer go together; give both or neither.",
        ),
        (
            {"critic_optimizer": OptimizerConfig()},
            "A critic and critic_optimizer go together; give both or neither.",
        ),
        (
            {"reference": "snap"},
            "reference must be 'none', 'snapshot' or a model, got 'snap'.",
        ),
        (
            {"reference": kit.decoder(vocab_size=12)},
            "The reference has a vocabulary of 12 tokens, the actor of 11; they must share a "
            "tokenizer.",
        ),
        ({"length": None}, "Give row_length in the ClusterConfig, or max_tokens to the Cluster."),
        (
            {"max_tokens": 22},
            "row_length=21 is shorter than the longest sequence of the run, 22 tokens; raise "
            "row_length, or lower the prompt or completion limit.",
        ),
    ]:
        with pytest.raises(ZootomyError) as error:
            kit.cluster(**options)
        assert str(error.value) == message
