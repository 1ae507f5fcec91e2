"""Optimizer steps: looked at and then taken, or begun before it is known whether they are."""

import signal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from zootomy.clusters import NonFiniteError, OptimizerConfig, Role, make_optimizer
from zootomy.clusters.optimizer_step import step_program
from zootomy.clusters.programs import Total
from zootomy.clusters.step import Step, is_launched
from zootomy.clusters.trained import TrainedModel

PARAMS = {"embed": jnp.ones((4, 3)), "kernel": jnp.full((3, 2), 0.5), "bias": jnp.zeros(2)}
GRADS = jax.tree.map(lambda p: jnp.linspace(0.1, 1.0, p.size).reshape(p.shape), PARAMS)
BROKEN = {**GRADS, "bias": jnp.asarray([1.0, jnp.nan])}
ADAM = make_optimizer(OptimizerConfig(learning_rate=0.1), 10)


def take_step(optimizer, params, state, total, **kept):
    """Parameters and state after a step, or as they were, and what was found."""
    step = Step(optimizer, params, state, total, **kept)
    step.begin()
    if bool(step.report.applied):
        return step.made, step.optimizer_state, step.report
    assert step.begun == is_launched(kept["check"], keep_optimizer=kept["keep_optimizer"])
    return params, step.optimizer_state, step.refusal(params)


def launch_step(optimizer, params, state, total, *, keep_params):
    kept = {"check": "gradients", "keep_params": keep_params, "keep_optimizer": False}
    step = Step(optimizer, params, state, total, **kept)
    step.begin()
    assert step.begun
    return step


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
    program = step_program("gradients", keep_optimizer=False, launched=True)
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


def answer(monkeypatch, flag_of):
    """Have the steps that are begun from now on answer with another flag whether they are taken."""
    begin = Step.begin

    def begun(step):
        begin(step)
        step.report = step.report._replace(applied=flag_of(step.report.applied))

    monkeypatch.setattr(Step, "begin", begun)


def interrupt(cluster, monkeypatch, call):
    """An update that is interrupted while it waits."""
    with monkeypatch.context() as patch:
        answer(patch, Interrupting)
        with pytest.raises(KeyboardInterrupt):
            call()


OFFLOADS = [(), ("actor.optimizer",), ("actor.optimizer", "actor")]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("offload", OFFLOADS)
def test_an_interrupted_step_is_whole(kit, ragged, monkeypatch, dtype, offload):
    options = {"optimizer": kit.adam, "role_to_dtype": {"actor": dtype}, "offload_to_cpu": offload}
    cluster, twin = kit.cluster(**options), kit.cluster(**options)
    for one in (cluster, twin):
        kit.update(one, ragged)  # From now on nobody else holds the parameters.
    kit.update(twin, ragged)
    interrupt(cluster, monkeypatch, lambda: kit.update(cluster, ragged))
    assert cluster.steps("actor") == 2
    for _ in range(2):
        _assert_same(cluster, twin)
        for one in (cluster, twin):
            kit.update(one, ragged)


@pytest.mark.parametrize("offload", OFFLOADS)
def test_an_interrupted_step_that_is_not_taken_changes_nothing(kit, ragged, monkeypatch, offload):
    cluster = kit.cluster(optimizer=kit.adam, offload_to_cpu=offload)
    for _ in range(2):
        kit.update(cluster, ragged)
    model = cluster._actor
    before = jax.tree.map(np.asarray, (model.params, model.optimizer_state))
    # The squares of 1e30 are above 3e38.
    interrupt(cluster, monkeypatch, lambda: kit.update(cluster, ragged, scale=1e30))
    assert cluster.steps("actor") == 2
    after = jax.tree.map(np.asarray, (model.params, model.optimizer_state))
    jax.tree.map(np.testing.assert_array_equal, before, after)


def test_an_interrupted_step_counts_for_both_parts(kit, ragged, monkeypatch):
    cluster = kit.cluster(
        optimizer=kit.adam, critic="shared", critic_optimizer=kit.adam, critic_steps=10
    )
    interrupt(cluster, monkeypatch, lambda: kit.update(cluster, ragged))
    assert cluster.steps("actor") == cluster.steps("critic") == 1
    loss = kit.squared_values
    interrupt(cluster, monkeypatch, lambda: kit.update(cluster, ragged, "critic", loss))
    assert [cluster.steps(role) for role in ("actor", "critic")] == [1, 2]
    for role, one in (("actor", kit.weighted_logp), ("critic", loss)):
        kit.update(cluster, ragged, role, one)
    assert [cluster.steps(role) for role in ("actor", "critic")] == [2, 4]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timer interrupts here")
@pytest.mark.parametrize("optimizer", ["adamw", "lion", "muon"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_interrupts_at_any_time_of_a_launch_lose_nothing(
    kit, ragged, monkeypatch, optimizer, dtype
):
    """What a program was given is gone when its call returns: what it gave must be held then."""
    config = OptimizerConfig(name=optimizer, learning_rate=0.01)
    options = {"optimizer": config, "role_to_dtype": {"actor": dtype}, "total_steps": 99}
    cluster, twin = kit.cluster(**options), kit.cluster(**options)
    known = []

    def numbers(one):
        return jax.tree.map(np.asarray, (one._actor.params, one._actor.optimizer_state))

    for _ in range(45):
        known.append(numbers(twin))
        kit.update(twin, ragged)
    for _ in range(2):  # The first call of a program is more than the call.
        kit.update(cluster, ragged)

    launching = []

    def raise_it(*_):
        if launching:  # Elsewhere it might leave a context of JAX, which later tests would be in.
            raise KeyboardInterrupt

    begin, delays = Step.begin, np.random.default_rng(0).uniform(1e-5, 3e-4, 40).tolist()

    def timed(step):
        launching.append(step)
        signal.setitimer(signal.ITIMER_REAL, delays.pop())
        try:
            begin(step)
        finally:
            launching.clear()

    before = signal.signal(signal.SIGALRM, raise_it)
    heard = 0
    try:
        monkeypatch.setattr(Step, "begin", timed)
        for _ in range(len(delays)):
            try:
                kit.update(cluster, ragged)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                heard += 1
            jax.tree.map(
                np.testing.assert_array_equal, numbers(cluster), known[cluster.steps("actor")]
            )
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert heard


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("offload", OFFLOADS)
@pytest.mark.parametrize("optimizer", ["adamw", "lion", "muon"])
def test_what_is_not_taken_is_named(kit, ragged, dtype, offload, optimizer):
    """A step that nobody else holds the state of, whose gradients were to be overwritten."""
    cluster = kit.cluster(
        optimizer=OptimizerConfig(name=optimizer, learning_rate=0.01),
        role_to_dtype={"actor": dtype},
        offload_to_cpu=offload,
    )
    for _ in range(2):
        kit.update(cluster, ragged)
    model = cluster._actor
    before = jax.tree.map(np.asarray, (model.params, model.optimizer_state))

    with pytest.raises(NonFiniteError) as error:
        cluster.update("actor", ragged, {}, kit.nan_gradient)
    assert str(error.value) == (
        "The gradient of 'embed_tokens.embedding' is not finite (12 of 12 parameters; actor, "
        "optimizer step 2), although the loss is 0. The step was not taken and no weights were "
        "changed."
    )
    after = jax.tree.map(np.asarray, (model.params, model.optimizer_state))
    jax.tree.map(np.testing.assert_array_equal, before, after)
    kit.update(cluster, ragged)
    assert cluster.steps("actor") == 3


def test_devices_that_fail_in_a_step_say_what_is_lost(kit, ragged, monkeypatch):
    cluster = kit.cluster(optimizer=kit.adam)

    class Failed:
        def __init__(self, flag):
            del flag

        def __bool__(self):
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")

    answer(monkeypatch, Failed)
    with pytest.raises(jax.errors.JaxRuntimeError, match="out of memory") as error:
        kit.update(cluster, ragged)
    assert error.value.__notes__ == [
        "The devices failed in optimizer step 0 of the actor, or in the pass before it. What the "
        "step was to overwrite, the optimizer's state, is lost: go on from a checkpoint."
    ]
    assert cluster.steps("actor") == 0


def test_an_optimizer_that_waits_on_the_host_is_compiled_for_the_devices(kit, ragged, compiled):
    options = {"optimizer": OptimizerConfig(learning_rate=0.0321)}
    cluster = kit.cluster(**options, offload_to_cpu=OFFLOADS[-1])
    cluster.compile_steps()
    assert compiled.count("jit(_step_if)") == 1
    compiled.clear()
    kit.update(cluster, ragged)
    assert "jit(_step_if)" not in compiled


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


def test_an_optimizer_from_elsewhere_is_looked_at_first(kit, ragged):
    """Nothing bounds its updates, and its state may change as a condition forbids."""

    def init(params):
        del params
        return {"n": jnp.zeros((), jnp.int32)}

    def update(updates, state, params=None):
        return jax.tree.map(lambda g: -0.1 * g, updates), {"n": state["n"] + 1.0}

    config = kit.cluster().config
    model = TrainedModel(
        Role.ACTOR, kit.decoder(), config.placement("actor"), kit.adam, 10,
        optimizer=optax.GradientTransformation(init, update),
    )  # fmt: skip
    gradients = jax.tree.map(jnp.ones_like, model.params)
    before = jax.tree.map(np.asarray, model.params)
    assert model.step(Total(gradients, jnp.float32(1.0))).applied
    jax.tree.map(
        lambda old, new: np.testing.assert_allclose(new, old - 0.1, rtol=1e-6, atol=1e-7),
        before, model.params,
    )  # fmt: skip
    assert model.optimizer_state["n"] == 1.0
