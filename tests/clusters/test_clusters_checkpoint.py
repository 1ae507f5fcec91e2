"""States and checkpoints: bit for bit, whole or not at all, of this model or refused."""

import os
import signal
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zootomy import ZootomyError
from zootomy.clusters import Checkpoints, OptimizerConfig, Role
from zootomy.clusters.naming import named_leaves


def assert_equal(one, other):
    one, other = named_leaves(one), named_leaves(other)
    assert one.keys() == other.keys()
    for name, leaf in one.items():
        np.testing.assert_array_equal(leaf, other[name], err_msg=name)


class Engine:
    """Remembers what it was given."""

    def __init__(self):
        self.given = []

    def update_weights(self, weights, version):
        self.given.append((version, weights))


def make(kit, seed, engine=None):
    return kit.cluster(
        optimizer=kit.adam,
        actor=kit.decoder(seed),
        reference="snapshot",
        critic=kit.critic(seed + 10),
        critic_optimizer=kit.adam,
        engine=engine,
    )


def train(kit, cluster, sequences):
    kit.update(cluster, sequences, temperature=0.7)
    kit.update(cluster, sequences, role="critic", loss=kit.squared_values)


def test_an_interrupted_run_equals_the_uninterrupted_one(kit, ragged, tmp_path):
    straight = make(kit, 0)
    for _ in range(3):
        train(kit, straight, ragged)
    straight.version = 7
    with Checkpoints(tmp_path, asynchronous=True) as checkpoints:
        state = straight.state()
        checkpoints.save(3, state.arrays, {"cluster": state.counters, "cursor": [2, 5]})
        # While it is being written the run goes on, and must not write over it.
        train(kit, straight, ragged)

    resumed = make(kit, 1, engine := Engine())
    with Checkpoints(tmp_path) as checkpoints:
        arrays, record = checkpoints.restore(resumed.state().arrays)
    assert record["cursor"] == [2, 5]
    resumed.restore(type(state)(arrays, record["cluster"]))
    assert_equal(resumed.state().arrays, state.arrays)
    # An optimizer that starts afresh has count 0 and moments of 0.
    named = named_leaves(arrays)
    counts = [int(leaf) for name, leaf in named.items() if name.endswith("count")]
    assert counts
    assert set(counts) == {3}
    assert any(".mu." in name and jnp.any(leaf != 0) for name, leaf in named.items())
    assert [version for version, _ in engine.given] == [0, 7]
    assert_equal(engine.given[1][1], arrays["actor"]["params"])

    train(kit, resumed, ragged)
    assert_equal(resumed.state().arrays, straight.state().arrays)
    assert resumed.state().counters == straight.state().counters
    # The reference is the actor as it was at first, not as it was saved.
    assert_equal(resumed.state().arrays["reference"], make(kit, 0).state().arrays["reference"])


def test_steps_leave_lent_arrays_alone(kit, ragged):
    engine, model = Engine(), kit.decoder()
    start = jax.device_get(jax.tree.leaves(kit.cluster(actor=model).state().arrays["actor"]))
    # This optimizer remembers the parameters that it starts from.
    dog = OptimizerConfig(name="dog", learning_rate=1.0)
    cluster = kit.cluster(actor=model, reference="snapshot", engine=engine, optimizer=dog)
    kit.update(cluster, ragged)
    kit.update(cluster, ragged)
    assert cluster.sync_weights() == 1
    synced = jax.device_get(engine.given[1][1])
    kit.update(cluster, ragged)
    kit.update(cluster, ragged)
    # The model that was given, the reference and the engine: each still has what it had.
    assert_equal(engine.given[1][1], synced)
    for found in (engine.given[0][1], cluster.state().arrays["reference"]["params"]):
        for leaf, first in zip(jax.tree.leaves(found), start, strict=True):
            np.testing.assert_array_equal(leaf, first)
    assert model.embed_tokens.embedding[...].shape == (11, 8)
    assert (jax.tree.leaves(synced)[0] != start[0]).any()


def test_another_mesh(kit, tmp_path):
    def on(devices):
        mesh = {Role.ACTOR: f"data={devices}"}
        return kit.cluster(
            8, 12, 2, role_to_mesh=mesh, optimizer=kit.adam, actor=kit.decoder(devices)
        )

    eight, one = on(8), on(1)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, eight.state().arrays, {})
        arrays, _ = checkpoints.restore(one.state().arrays)
    assert_equal(arrays, eight.state().arrays)
    assert all(len(leaf.sharding.device_set) == 1 for leaf in jax.tree.leaves(arrays))


def test_a_checkpoint_of_another_model_is_refused(kit, tmp_path):
    plain = kit.cluster().state().arrays
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(4, plain, {})
        for other, message in [
            (
                kit.cluster(actor=kit.decoder(hidden_size=6)),
                "'actor.params.embed_tokens.embedding' is float32[11, 8] there and "
                "float32[11, 6] in this run.",
            ),
            (
                kit.cluster(actor=kit.decoder(num_layers=2)),
                "lacks 'actor.params.layers.1.input_layernorm.scale' (float32[8]), which this "
                "run has: it is of another model, optimizer or role.",
            ),
            (
                kit.cluster(actor=kit.decoder(tie_embeddings=True)),
                "holds 'actor.params.lm_head.kernel' (float32[8, 11]), which this run does not "
                "have: it is of another model, optimizer or role.",
            ),
        ]:
            with pytest.raises(ZootomyError) as error:
                checkpoints.restore(other.state().arrays)
            assert str(error.value).startswith(f"The saved checkpoint of step 4 in {tmp_path} ")
            assert str(error.value).endswith(message)
    with pytest.raises(ZootomyError, match=r"has the roles \['actor'\], this run \['actor', 'ref"):
        kit.cluster(reference="snapshot").restore(kit.cluster().state())


def test_the_newest_are_kept(tmp_path):
    with Checkpoints(tmp_path / "deep" / "run", keep=2) as checkpoints:
        assert checkpoints.latest() is None
        with pytest.raises(ZootomyError, match="There is no checkpoint in "):
            checkpoints.record()
        for step in (1, 2, 5):
            checkpoints.save(step, {"a": jnp.full(3, step)}, {"step": step})
        assert checkpoints.steps() == [2, 5]
        assert checkpoints.latest() == 5
        assert checkpoints.record() == {"step": 5}
        arrays, record = checkpoints.restore({"a": jnp.zeros(3, jnp.int32)}, step=2)
        assert (arrays["a"].tolist(), record) == ([2, 2, 2], {"step": 2})
        with pytest.raises(ZootomyError, match=r"no checkpoint of step 1 in .*; there are 2, 5"):
            checkpoints.record(1)
        with pytest.raises(ZootomyError, match=r"Step 5 cannot be saved: .* holds step 5 already"):
            checkpoints.save(5, {"a": jnp.zeros(3)}, {})
        with pytest.raises(ZootomyError, match=r"must be plain data: .* set is not JSON"):
            checkpoints.save(6, {"a": jnp.zeros(3)}, {"ids": {1}})
        with pytest.raises(ZootomyError, match="must be plain data: Out of range float"):
            checkpoints.save(6, {"a": jnp.zeros(3)}, {"best": float("nan")})
        with pytest.raises(ZootomyError, match="must come back from JSON as it was"):
            checkpoints.save(6, {"a": jnp.zeros(3)}, {"shape": (1, 2)})
    with pytest.raises(ZootomyError, match="keep must be at least 1"):
        Checkpoints(tmp_path, keep=0)


def test_kill_while_writing_leaves_the_former_one(tmp_path):
    # The process dies at the moment when the second checkpoint, all written, would get its name.
    script = f"""
        import os, signal
        import jax.numpy as jnp
        from zootomy.clusters import Checkpoints

        checkpoints = Checkpoints({str(tmp_path)!r})
        checkpoints.save(1, {{"a": jnp.arange(4)}}, {{"step": 1}})

        def dying(call):
            def wrapped(source, target, *rest, **options):
                if os.path.basename(str(target)) == "2":
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(source, target, *rest, **options)
            return wrapped

        os.rename, os.replace = dying(os.rename), dying(os.replace)
        checkpoints.save(2, {{"a": jnp.arange(4) + 9}}, {{"step": 2}})
        checkpoints.close()
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert any(name.startswith("2") for name in os.listdir(tmp_path / "unfinished"))
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.steps() == [1]
        arrays, record = checkpoints.restore({"a": jnp.zeros(4, jnp.int32)})
        assert (arrays["a"].tolist(), record) == ([0, 1, 2, 3], {"step": 1})
        checkpoints.save(2, {"a": jnp.arange(4)}, {"step": 2})
        assert checkpoints.latest() == 2
