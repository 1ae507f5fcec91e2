"""The same run on other meshes, and with roles on meshes of their own: the same numbers."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx
from zootomy.clusters import OptimizerConfig
from zootomy.models import Decoder, ValueModel
from zootomy.rollout import Request, RolloutConfig, SamplingParams

ROLLOUT = RolloutConfig(max_prompt_tokens=6, max_new_tokens=5, max_slots=8)
SAMPLING = SamplingParams(temperature=0.7, max_new_tokens=5, stop_ids=(0, 9))
REQUESTS = [Request((1, 2, 3, 4), n=2), Request((5,), n=3)]
SGD = OptimizerConfig(name="sgd", learning_rate=1.0, max_grad_norm=None)
ADAM = OptimizerConfig(learning_rate=0.02)

APART = {"rollout": "tensor=2@2", "reference": "data=2@4", "critic": "fsdp=2@6"}
# Every axis alone and beside others, on 2, 4 and 8 devices.
MESHES = [
    "data=2", "fsdp=2", "tensor=2", "sequence=2", "data=2,fsdp=2", "fsdp=2,tensor=2",
    "fsdp=4", "data=2,sequence=2", "fsdp=8", "data=2,fsdp=2,tensor=2", "fsdp=2,tensor=2,sequence=2",
]  # fmt: skip
PLACES = [{role: mesh} for role, mesh in APART.items()] + [
    # The same devices in another shape: nothing is shared, and all are used by both.
    {"rollout": "data=2"},
]


def outcome(kit, ragged, mesh, roles=None, *, critic=False):
    """What two steps of a run give: reference, losses, gradient, samples, values."""
    config = dataclasses.replace(kit.config, vocab_size=12, num_heads=4, num_kv_heads=2)
    options = {}
    if critic:
        model = ValueModel(config, rngs=nnx.Rngs(1))
        model.score.kernel[...] = np.linspace(-1.0, 1.0, 8, dtype=np.float32)[:, None]
        options = {"critic": model, "critic_optimizer": ADAM}
    # 3 rows of 13 tokens divide over none of the meshes.
    cluster = kit.cluster(
        3, 13, 3, mesh=mesh, role_to_mesh=roles or {}, actor=Decoder(config, rngs=nnx.Rngs(0)),
        optimizer=SGD, reference="snapshot", engine=ROLLOUT, **options,
    )  # fmt: skip
    found = {"start": jax.device_get(cluster.state().arrays["actor"]["params"])}
    for step in range(2):
        found[f"reference {step}"] = cluster.log_probs("reference", ragged, temperature=0.7)["logp"]
        result = kit.update(cluster, ragged, temperature=0.7, scale=0.1)
        found[f"loss {step}"] = np.array([result.loss, result.grad_norm])
        found[f"params {step}"] = jax.device_get(cluster.state().arrays["actor"]["params"])
        if critic:
            result = kit.update(cluster, ragged, "critic", kit.squared_values)
            found[f"critic {step}"] = np.array([result.loss, result.grad_norm])
            found[f"values {step}"] = cluster.values(ragged)
    cluster.sync_weights()
    groups = cluster.generate(REQUESTS, SAMPLING, seed=3)
    flat = [completion for group in groups for completion in group]
    found["tokens"] = np.concatenate([completion.tokens for completion in flat])
    found["logp"] = np.concatenate([completion.logp for completion in flat])
    return found, cluster


@pytest.fixture(scope="module")
def alone(kit, ragged):
    return outcome(kit, ragged, "data=1", critic=True)[0]


def same(found, expected):
    np.testing.assert_array_equal(found["tokens"], expected["tokens"])
    assert {len(found), len(expected)} <= {9, 13}  # without and with a critic
    for name in found:
        for ours, theirs in zip(*map(jax.tree.leaves, (found[name], expected[name])), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-5, err_msg=name)
    # Of plain SGD at rate 1: what was moved is the gradient, and it is not nothing.
    moved = jax.tree.map(np.subtract, found["params 0"], found["start"])
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(moved)) > 0.01


def test_all_axes_together(kit, ragged, alone):
    found, cluster = outcome(kit, ragged, "data=2,fsdp=2,tensor=2")
    same(found, alone)
    params = cluster.state().arrays["actor"]["params"]
    gate = params["layers"][0]["mlp"]["gate_proj"]["kernel"]
    embedding = params["embed_tokens"]["embedding"]
    # [8, 16] over fsdp and tensor, [12, 8] over tensor and fsdp: a quarter on each device.
    assert {shard.data.shape for shard in gate.addressable_shards} == {(4, 8)}
    assert {shard.data.shape for shard in embedding.addressable_shards} == {(6, 4)}


def test_each_role_on_a_mesh_of_its_own(kit, ragged, alone):
    found, cluster = outcome(kit, ragged, "fsdp=2", APART, critic=True)
    same(found, alone)
    arrays = cluster.state().arrays
    for role, devices in {"actor": [0, 1], "reference": [4, 5], "critic": [6, 7]}.items():
        for leaf in jax.tree.leaves(arrays[role]):
            assert sorted(device.id for device in leaf.devices()) == devices


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_every_mesh(kit, ragged, alone, mesh):
    same(outcome(kit, ragged, mesh, critic=True)[0], alone)


@pytest.mark.slow
@pytest.mark.parametrize("roles", PLACES, ids=str)
def test_every_place_of_a_role(kit, ragged, alone, roles):
    same(outcome(kit, ragged, "fsdp=2", roles, critic=True)[0], alone)
