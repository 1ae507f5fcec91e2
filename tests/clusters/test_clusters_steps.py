"""Optimizer steps: looked at and then taken, or begun before it is known whether they are."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from zootomy.clusters import NonFiniteError, OptimizerConfig, make_optimizer, trained
from zootomy.clusters.optimizer_step import _step_program, is_launched, launch_step, take_step
from zootomy.clusters.programs import Total

PARAMS = {"embed": jnp.ones((4, 3)), "kernel": jnp.full((3, 2), 0.5), "bias": jnp.zeros(2)}
GRADS = jax.tree.map(lambda p: jnp.linspace(0.1, 1.0, p.size).reshape(p.shape), PARAMS)
BROKEN = {**GRADS, "bias": jnp.asarray([1.0, jnp.nan])}
ADAM = make_optimizer(OptimizerConfig(learning_rate=0.1), 10)


def test_a_step_that_looks_at_gradients_alone_is_the_same_step():
    outcomes = []
    for check in ("gradients", "updates", "kept updates"):
        optimizer = make_optimizer(OptimizerConfig(learning_rate=0.1), 10)
        before = jax.tree.map(jnp.copy, (PARAMS, optimizer.init(PARAMS), Total(GRADS, 1.0)))
        kept = {"keep_params": True, "keep_optimizer": True}
        outcomes.append(take_step(optimizer, *before, check=check, **kept))
    for other in outcomes[1:]:
        jax.tree.map(np.testing.assert_array_equal, outcomes[0], other)


@pytest.mark.parametrize("check", ["gradients", "updates", "kept updates"])
def test_a_step_is_that_of_optax_or_none(check):
    optimizer = make_optimizer(OptimizerConfig(learning_rate=0.1), 10)
    params, state = jax.tree.map(jnp.copy, (PARAMS, optimizer.init(PARAMS)))
    kept = {"check": check, "keep_params": True, "keep_optimizer": True}
    broken = {**GRADS, "bias": jnp.asarray([1.0, jnp.nan])}
    same, same_state, report = take_step(optimizer, params, state, Total(broken, 1.0), **kept)
    assert not report.applied
    assert same is params
    assert same_state is state
    finite = {name: bool(flag) for name, flag in report.finite.gradients.items()}
    assert finite == {"embed": True, "kernel": True, "bias": False}
    gradients = jax.tree.map(jnp.copy, GRADS)
    new, after, report = take_step(optimizer, params, state, Total(gradients, 1.0), **kept)
    updates, expected = optimizer.update(GRADS, state, PARAMS)
    assert report.applied
    assert report.finite is None
    for ours, theirs in ((new, optax.apply_updates(PARAMS, updates)), (after, expected)):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), ours, theirs)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("launched", [False, True])
def test_all_that_a_step_makes_lies_where_the_same_lay_before(dtype, launched):
    """Moments of one shape that took each other's memory would be copied first."""
    params, state, total = _fresh(dtype, GRADS)
    before = _places((state, total.gradients if dtype == jnp.float32 else params))
    if launched:
        found = launch_step(ADAM, params, state, total, keep_params=False)
        made, state = found.made, found.optimizer_state
    else:
        kept = {"check": "updates", "keep_params": False, "keep_optimizer": False}
        made, state, _ = take_step(ADAM, params, state, total, **kept)
    assert _places((state, made)) == before


def _places(tree):
    return [x.unsafe_buffer_pointer() for x in jax.tree.leaves(tree) if x.ndim]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("keep_params", [False, True])
def test_a_launched_step_is_a_step_that_was_looked_at(dtype, keep_params):
    params, state, total = _fresh(dtype, GRADS)
    kept = {"keep_params": True, "keep_optimizer": True}
    given = jax.tree.map(jnp.copy, (params, state, total))
    wanted, after, report = take_step(ADAM, *given, check="gradients", **kept)
    launched = launch_step(ADAM, params, state, total, keep_params=keep_params)
    assert launched.report.applied
    assert launched.report.grad_norm == report.grad_norm == optax.tree.norm(GRADS)
    jax.tree.map(
        np.testing.assert_array_equal, (launched.made, launched.optimizer_state), (wanted, after)
    )
    # What others hold stays; of what nobody holds the memory is used again.
    narrow = dtype != jnp.float32
    assert launched.spent == ("gradients" if not narrow else "neither" if keep_params else "params")
    assert _gone(state)
    assert _gone(total.gradients) == (not narrow)
    assert _gone(params) == (narrow and not keep_params)
    assert not total.loss.is_deleted()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("keep_params", [False, True])
@pytest.mark.parametrize("cause", ["gradient", "loss"])
def test_a_launched_step_that_is_not_taken_leaves_all_in_its_place(dtype, keep_params, cause):
    gradients, loss = (BROKEN, 1.0) if cause == "gradient" else (GRADS, jnp.inf)
    params, state, total = _fresh(dtype, gradients, loss)
    old = jax.tree.map(jnp.copy, (params, state, gradients))
    places = _places(state)
    launched = launch_step(ADAM, params, state, total, keep_params=keep_params)
    assert not launched.report.applied
    assert launched.report.loss == loss
    jax.tree.map(np.testing.assert_array_equal, launched.optimizer_state, old[1])
    assert _places(launched.optimizer_state) == places
    given = old[2] if launched.spent == "gradients" else old[0]
    jax.tree.map(np.testing.assert_array_equal, launched.made, given)
    if launched.spent != "gradients":
        jax.tree.map(np.testing.assert_array_equal, total.gradients, gradients)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_what_is_launched_copies_nothing(name):
    """The reason why some steps wait: lion's old moments are needed beside the new."""
    optimizer = make_optimizer(OptimizerConfig(name=name, learning_rate=0.1), 10)
    params, state, total = _fresh(jnp.float32, GRADS, optimizer=optimizer)
    assert is_launched(OptimizerConfig(name=name).check, keep_optimizer=False)
    assert not is_launched(OptimizerConfig(name=name).check, keep_optimizer=True)
    assert not is_launched(OptimizerConfig(name="lion").check, keep_optimizer=False)
    norm, applied = jnp.float32(1.0), jnp.array(True)
    program = _step_program("gradients", keep_optimizer=False, launched=True)
    compiled = program.lower(optimizer, state, params, total.gradients, norm, applied).compile()
    sizes = compiled.memory_analysis()
    largest = max(x.nbytes for x in jax.tree.leaves(params))
    assert sizes.alias_size_in_bytes >= sum(x.nbytes for x in jax.tree.leaves((state, params)))
    assert sizes.temp_size_in_bytes < largest + 1024


class Interrupting:
    """A flag whose first reader is interrupted, when it has waited."""

    def __init__(self, flag):
        self.flag = flag
        self.asked = 0

    def __bool__(self):
        found = bool(self.flag)
        self.asked += 1
        if self.asked == 1:
            raise KeyboardInterrupt
        return found


def interrupt(monkeypatch):
    """Have the next step interrupted while it is waited for."""
    launch = trained.launch_step

    def launched(*arguments, **named):
        monkeypatch.setattr(trained, "launch_step", launch)
        found = launch(*arguments, **named)
        flag = Interrupting(found.report.applied)
        return found._replace(report=found.report._replace(applied=flag))

    monkeypatch.setattr(trained, "launch_step", launched)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("offload", [(), ("actor.optimizer", "actor")])
def test_an_interrupted_step_is_whole(kit, ragged, monkeypatch, dtype, offload):
    options = {"optimizer": kit.adam, "role_to_dtype": {"actor": dtype}, "offload_to_cpu": offload}
    cluster, twin = kit.cluster(**options), kit.cluster(**options)
    for one in (cluster, twin):
        kit.update(one, ragged)  # From now on nobody else holds the parameters.
    kit.update(twin, ragged)
    interrupt(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        kit.update(cluster, ragged)
    assert cluster.steps("actor") == 2
    for _ in range(2):
        _assert_same(cluster, twin)
        for one in (cluster, twin):
            kit.update(one, ragged)


def test_an_interrupted_step_that_is_not_taken_changes_nothing(kit, ragged, monkeypatch):
    cluster = kit.cluster(optimizer=kit.adam)
    kit.update(cluster, ragged)
    before = jax.device_get(cluster.state().arrays)
    cluster._actor._optimizer_lent = False  # The copy is on the host.
    interrupt(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        kit.update(cluster, ragged, scale=1e30)  # squares of 1e30 are above 3e38
    assert cluster.steps("actor") == 1
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(cluster.state().arrays), before)


def test_an_interrupted_step_counts_for_both_parts(kit, ragged, monkeypatch):
    cluster = kit.cluster(
        optimizer=kit.adam, critic="shared", critic_optimizer=kit.adam, critic_steps=10
    )
    interrupt(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        kit.update(cluster, ragged)
    assert cluster.steps("actor") == cluster.steps("critic") == 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_launched_and_not_taken_is_named(kit, ragged, dtype):
    """A step that nobody else holds the state of, whose gradients were to be overwritten."""
    cluster = kit.cluster(optimizer=kit.adam, role_to_dtype={"actor": dtype})
    for _ in range(2):
        kit.update(cluster, ragged)
    model = cluster._actor
    before = jax.tree.map(np.asarray, (model.params, model.optimizer_state))

    def nan_gradient(outputs, batch, coefficients):
        return jnp.sqrt(outputs.logp * 0).sum(), {}  # 0, but its slope is infinite

    with pytest.raises(NonFiniteError) as error:
        cluster.update("actor", ragged, {}, nan_gradient)
    assert str(error.value) == (
        "The gradient of 'embed_tokens.embedding' is not finite (12 of 12 parameters; actor, "
        "optimizer step 2), although the loss is 0. The step was not taken and no weights were "
        "changed."
    )
    after = jax.tree.map(np.asarray, (model.params, model.optimizer_state))
    jax.tree.map(np.testing.assert_array_equal, before, after)
    kit.update(cluster, ragged)
    assert cluster.steps("actor") == 3


def test_a_pass_that_fails_loses_nothing(kit, ragged):
    cluster, twin = kit.cluster(optimizer=kit.adam), kit.cluster(optimizer=kit.adam)
    for one in (cluster, twin):
        kit.update(one, ragged)

    def fail(x):
        raise ValueError("no such thing")

    def failing(outputs, batch, coefficients):
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        asked = jax.pure_callback(fail, shape, jax.lax.stop_gradient(outputs.logp).sum())
        return outputs.logp.sum() * jax.lax.stop_gradient(asked), {}

    with pytest.raises(jax.errors.JaxRuntimeError, match="no such thing"):
        cluster.update("actor", ragged, {}, failing)
    for one in (cluster, twin):
        kit.update(one, ragged)
    _assert_same(cluster, twin)


def test_devices_that_fail_in_a_step_say_what_is_lost(kit, ragged, monkeypatch):
    cluster = kit.cluster(optimizer=kit.adam)

    class Failed:
        def __bool__(self):
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")

    launch = trained.launch_step

    def launched(*arguments, **named):
        found = launch(*arguments, **named)
        return found._replace(report=found.report._replace(applied=Failed()))

    monkeypatch.setattr(trained, "launch_step", launched)
    with pytest.raises(jax.errors.JaxRuntimeError, match="out of memory") as error:
        kit.update(cluster, ragged)
    assert error.value.__notes__ == [
        "The devices failed in optimizer step 0 of the actor, and what it was to overwrite, the "
        "optimizer's state, is lost: go on from a checkpoint."
    ]
    assert cluster.steps("actor") == 0


def _fresh(dtype, gradients, loss=1.0, optimizer=ADAM):
    params = jax.tree.map(lambda x: jnp.array(x, dtype, copy=True), PARAMS)
    state = jax.tree.map(jnp.copy, optimizer.init(PARAMS))
    return params, state, Total(jax.tree.map(jnp.copy, gradients), jnp.float32(loss))


def _gone(tree):
    (gone,) = {x.is_deleted() for x in jax.tree.leaves(tree)}
    return gone


def _assert_same(one, other):
    for model in (one._actor, other._actor):
        model.wake()
    pairs = [(model.params, model.optimizer_state) for model in (one._actor, other._actor)]
    jax.tree.map(np.testing.assert_array_equal, *jax.device_get(pairs))
    assert one.steps("actor") == other.steps("actor")
