"""One copy of equal weights on one mesh, weights from mesh to mesh, idle roles on the host."""

import jax
import numpy as np
import pytest
from flax import nnx
from zootomy import ZootomyError
from zootomy.clusters import NonFiniteError
from zootomy.clusters.memory import held_bytes
from zootomy.rollout import Request, RolloutConfig, SamplingParams

ROLLOUT = RolloutConfig(max_prompt_tokens=6, max_new_tokens=5, max_slots=8)


def pointers(params):
    """Where on their devices the shards of all parameters lie."""
    return [
        shard.data.unsafe_buffer_pointer()
        for leaf in jax.tree.leaves(params)
        for shard in leaf.addressable_shards
    ]


def engine_params(cluster):
    return cluster.engine._params


def test_colocated_roles_share_one_copy_until_the_first_step(kit, ragged):
    actor = kit.decoder()
    cluster = kit.cluster(2, 12, 3, mesh="fsdp=2", actor=actor, reference="snapshot",
                          engine=ROLLOUT)  # fmt: skip
    arrays = cluster.state().arrays
    first = pointers(arrays["actor"]["params"])
    assert pointers(arrays["reference"]["params"]) == first
    assert pointers(engine_params(cluster)) == first
    kit.update(cluster, ragged)
    cluster.sync_weights()
    arrays = cluster.state().arrays
    # The reference keeps what it was; the engine has moved on with the actor.
    assert pointers(arrays["reference"]["params"]) == first
    assert pointers(engine_params(cluster)) == pointers(arrays["actor"]["params"])
    assert not set(first) & set(pointers(arrays["actor"]["params"]))
    cluster.refresh_reference()
    arrays = cluster.state().arrays
    assert pointers(arrays["reference"]["params"]) == pointers(arrays["actor"]["params"])


def test_what_others_hold_outlives_a_step_that_was_not_taken(kit, ragged):
    """It makes no arrays of its own: the present ones are as lent after it as before."""
    # In bfloat16 a step writes its parameters over the old ones, in float32 over the gradients.
    cluster = kit.cluster(optimizer=kit.adam, role_to_dtype={"actor": "bfloat16"})
    kit.update(cluster, ragged)
    held = cluster.state().arrays
    before = jax.tree.map(np.array, held)
    with pytest.raises(NonFiniteError):
        kit.update(cluster, ragged, scale=float("nan"))
    assert pointers(cluster._actor.params) == pointers(held["actor"]["params"])
    kit.update(cluster, ragged)
    jax.tree.map(np.testing.assert_array_equal, before, jax.tree.map(np.array, held))


def test_a_model_taken_from_one_that_waits_outlives_a_step(kit, ragged):
    cluster = kit.cluster(
        optimizer=kit.adam, role_to_dtype={"actor": "bfloat16"}, offload_to_cpu=("actor",)
    )
    assert not cluster._actor.awake
    model = nnx.state(cluster._actor.model())
    before = jax.tree.map(np.array, model)
    kit.update(cluster, ragged)
    jax.tree.map(np.testing.assert_array_equal, before, jax.tree.map(np.array, model))


def test_weights_go_from_mesh_to_mesh_in_the_rollouts_dtype(kit, ragged):
    cluster = kit.cluster(
        2, 12, 3, mesh="fsdp=2", role_to_mesh={"rollout": "data=2,tensor=2@4"},
        axis_rules={"rollout.vocab": "none", "kv_heads": "none"},
        role_to_dtype={"rollout": "bfloat16"}, engine=ROLLOUT,
    )  # fmt: skip
    kit.update(cluster, ragged)
    with jax.transfer_guard_device_to_host("disallow_explicit"):
        cluster.sync_weights()
    actor = cluster.state().arrays["actor"]["params"]
    for ours, theirs in zip(*map(jax.tree.leaves, (engine_params(cluster), actor)), strict=True):
        assert sorted(device.id for device in ours.devices()) == [4, 5, 6, 7]
        assert ours.dtype == "bfloat16"
        assert theirs.dtype == "float32"
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs.astype("bfloat16")))


def test_idle_roles_wait_on_the_host(kit, ragged):
    cluster = kit.cluster(
        2, 12, 3, optimizer=kit.adam, reference=kit.decoder(seed=4),
        critic=kit.critic(), critic_optimizer=kit.adam, engine=ROLLOUT,
        offload_to_cpu=("reference", "critic", "actor.optimizer"),
    )  # fmt: skip

    def on_device():
        """Role and part -> bytes on the devices."""
        trees = {
            f"{role}.{part}": tree
            for role, parts in cluster.state().arrays.items()
            for part, tree in parts.items()
        }
        return {name: size for name, size in held_bytes(trees).items() if size}

    def weights(role):
        return sum(leaf.nbytes for leaf in jax.tree.leaves(cluster.state().arrays[role]["params"]))

    size = weights("actor")
    assert on_device() == {"actor.params": size}
    before = cluster.log_probs("reference", ragged, temperature=0.7)["logp"]
    # It leaves when another goes to work, and not while it may be asked again.
    assert on_device() == {"actor.params": size, "reference.params": size}
    kit.update(cluster, ragged)
    assert on_device() == {"actor.params": size}
    kit.update(cluster, ragged, "critic", kit.squared_values)
    assert on_device() == {"actor.params": size, "critic.params": weights("critic")}
    cluster.sync_weights()
    assert on_device() == {"actor.params": size}
    after = cluster.log_probs("reference", ragged, temperature=0.7)["logp"]
    np.testing.assert_array_equal(before, after)


def test_what_is_offloaded_learns_the_same(kit, ragged):
    results = []
    for roles in ((), ("actor", "reference")):
        cluster = kit.cluster(
            2, 12, 3, optimizer=kit.adam, reference="snapshot", offload_to_cpu=roles
        )
        for _ in range(2):
            old = cluster.log_probs("reference", ragged, temperature=0.7)["logp"]
            result = kit.update(cluster, ragged)
        state = cluster.state()
        cluster.restore(state)
        results.append((old, result, jax.device_get(state.arrays)))
    (old, result, arrays), (offloaded_old, offloaded, offloaded_arrays) = results
    np.testing.assert_array_equal(offloaded_old, old)
    assert offloaded == result
    assert jax.tree.structure(arrays) == jax.tree.structure(offloaded_arrays)
    for ours, theirs in zip(*map(jax.tree.leaves, (arrays, offloaded_arrays)), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_which_clusters_sample_beside_learning(kit):
    def apart(mesh, **roles):
        return kit.cluster(
            engine=ROLLOUT, mesh=mesh, role_to_mesh=roles, axis_rules={"vocab": "none"}
        ).samples_apart

    assert not apart("fsdp=2")
    assert not apart("fsdp=2", rollout="data=2@1")
    assert apart("fsdp=2", rollout="data=1@2")
    assert apart("data=1", rollout="data=2@1")
    # On a CPU two programs of several devices each may wait for each other for ever.
    assert not apart("fsdp=2", rollout="data=2@2")


def test_an_actor_whose_arrays_sample_cannot_leave(kit):
    with pytest.raises(ZootomyError, match="the engine samples from the actor's own arrays"):
        kit.cluster(engine=ROLLOUT, offload_to_cpu=("actor",))
    cluster = kit.cluster(
        engine=ROLLOUT, offload_to_cpu=("actor",), role_to_mesh={"rollout": "data=1@1"}
    )
    assert cluster.memory()["actor"] == 0
    sampling = SamplingParams(max_new_tokens=2)
    assert len(cluster.generate([Request((1, 2))], sampling, seed=0)[0]) == 1
