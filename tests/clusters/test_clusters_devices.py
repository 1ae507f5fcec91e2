"""Rows spread over devices: the same numbers, and parameters on every device."""

import dataclasses

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh
from zootomy import ZootomyError
from zootomy.clusters import ClusterConfig, OptimizerConfig, Role, parse_mesh
from zootomy.clusters.meshes import mesh_text
from zootomy.clusters.shapes import Shape, row_shapes


@pytest.mark.parametrize("devices", [4])
def test_devices_change_nothing(kit, ragged, devices):
    clusters = [
        kit.cluster(8, 12, 3, mesh=f"data={count}", reference="snapshot") for count in (1, devices)
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
    usual = ClusterConfig(role_to_mesh={Role.ACTOR: mesh}).mesh_of(Role.ACTOR)
    assert usual.shape == {"data": 2, "fsdp": 1, "tensor": 1, "sequence": 1}
    assert set(usual.axis_types) == {AxisType.Auto}


def test_a_mesh_by_text_and_by_hand_are_the_same():
    by_hand = Mesh(np.array(jax.devices()[2:6]).reshape(2, 2), ("tensor", "data"))
    usual = ClusterConfig(role_to_mesh={"rollout": by_hand}).mesh_of(Role.ROLLOUT)
    # Axes come in one order: [data, fsdp, tensor, sequence], so the grid is turned over.
    assert [device.id for device in usual.devices.flat] == [2, 4, 3, 5]
    text = ClusterConfig(role_to_mesh={"rollout": "data=2,tensor=2@2"}).mesh_of(Role.ROLLOUT)
    assert text.shape == usual.shape
    assert [device.id for device in text.devices.flat] == [2, 3, 4, 5]
    assert mesh_text(text) == "data=2,tensor=2@2"
    with pytest.raises(ZootomyError, match=r"has the devices \[2, 4, 3, 5\], not in order"):
        mesh_text(by_hand)


def test_auto_is_one_device_on_a_cpu_and_all_of_a_number():
    assert str(parse_mesh("auto")) == "data=1"
    assert str(parse_mesh("auto", devices=8)) == "fsdp=8"


@pytest.mark.parametrize(
    "settings, message",
    [
        (
            {"role_to_mesh": {Role.ACTOR: Mesh(np.array(jax.devices()[:2]), ("x",))}},
            "Unknown mesh axis 'x'. Known: data, fsdp, sequence, tensor.",
        ),
        ({"mesh": "fsdp=4,tenor=2"}, "Unknown mesh axis 'tenor'. Did you mean 'tensor'?"),
        (
            {"mesh": "fsdp:4"},
            "A mesh is given as in 'fsdp=4,tensor=2', or 'data=2@4' for the devices from number 4 "
            "on, or as 'auto'; got 'fsdp:4'.",
        ),
        ({"mesh": "fsdp=2,fsdp=2"}, "The mesh 'fsdp=2,fsdp=2' gives the axis 'fsdp' twice."),
        (
            {"mesh": "fsdp=2@x"},
            "In the mesh 'fsdp=2@x', '@' must be followed by the number of its first device, got "
            "'x'.",
        ),
        ({"mesh": "fsdp=0"}, "The mesh axis 'fsdp' must be at least 1, got 0."),
        ({"axis_rules": {"vocabulary": "none"}}, "Unknown logical axis 'vocabulary'."),
        ({"axis_rules": {"rolout.vocab": "none"}}, "Unknown role 'rolout'."),
        ({"axis_rules": {"vocab": "tensors"}}, "Unknown mesh axis 'tensors'."),
        ({"role_to_dtype": {"rollout": "bf16"}}, "Unknown dtype 'bf16'."),
        ({"offload_to_cpu": ("rollout",)}, "Unknown role to offload 'rollout'."),
        (
            {"offload_to_cpu": "actor"},
            "offload_to_cpu is a list of names, got the text 'actor'.",
        ),
        ({"role_to_mesh": {"actr": "data=1"}}, "Unknown role 'actr'. Did you mean 'actor'?"),
        ({"micro_rows": 0}, "micro_rows must be an integer >= 1, got 0."),
    ],
)
def test_meshes_and_rows_that_cannot_be(settings, message):
    with pytest.raises(ZootomyError) as error:
        ClusterConfig(**settings)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    "settings, setting",
    [
        ({"role_to_mesh": {"critic": "data=1"}}, "role_to_mesh.critic"),
        ({"role_to_dtype": {"critic": "bfloat16"}}, "role_to_dtype.critic"),
        ({"axis_rules": {"vocab": "none", "critic.embed": "none"}}, "axis_rules.critic.embed"),
        ({"offload_to_cpu": ("actor", "critic.optimizer")}, "offload_to_cpu: critic.optimizer"),
    ],
)
def test_settings_of_a_role_that_a_run_does_not_have(settings, setting):
    config = ClusterConfig(**settings)
    config.check_roles((Role.ACTOR, Role.CRITIC))
    with pytest.raises(ZootomyError) as error:
        config.check_roles((Role.ACTOR, Role.ROLLOUT))
    assert str(error.value) == (
        f"cluster.{setting} has no effect: this run has no critic, only actor, rollout. Leave it "
        "out, or choose an algorithm that has one."
    )


def test_sizes_that_do_not_divide_are_filled_up_with_padding():
    config = ClusterConfig(
        mesh="data=2,fsdp=2", role_to_mesh={"critic": "data=3,sequence=2"}, micro_rows=5
    )
    # 5 rows over 4 devices here and 3 there: 12. 13 tokens over 1 and 2 devices: 14.
    length = config.length(13)
    assert (config.rows(length), length) == (12, 14)
    # 16 * 14 tokens: 16 rows, of which 12 divide.
    by_tokens = dataclasses.replace(config, micro_rows=None, micro_tokens=16 * 14)
    assert by_tokens.rows(length) == 12
    assert row_shapes(12, 14, 3, 12, 2) == [Shape(12, 14), Shape(12, 8)]


def test_clusters_that_cannot_be(kit):
    for options, message in [
        (
            {"mesh": "fsdp=3"},
            "The actor's 'embed_tokens.embedding' has 8 along 'embed', which do not divide over "
            "the 3 devices of the mesh axis 'fsdp'. Make that axis of the mesh a divisor of 8, or "
            "keep 'embed' whole: cluster.axis_rules.embed=none.",
        ),
        (
            {"mesh": "tensor=2"},
            "The actor's 'embed_tokens.embedding' has 11 along 'vocab', which do not divide over "
            "the 2 devices of the mesh axis 'tensor'. Make that axis of the mesh a divisor of 11, "
            "or keep 'vocab' whole: cluster.axis_rules.vocab=none.",
        ),
        (
            {"mesh": "data=4@6"},
            "The mesh 'data=4@6' takes the devices 6..9, but there are 8. Make it smaller, or on "
            "a CPU set XLA_FLAGS=--xla_force_host_platform_device_count=10.",
        ),
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
