"""Optimizers by name and schedules that count optimizer steps."""

import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from zootomy import ZootomyError
from zootomy.clusters import OptimizerConfig, make_optimizer, make_schedule, optimizer_names

PARAMS = {"embed": jnp.ones((4, 3)), "kernel": jnp.full((3, 2), 0.5), "bias": jnp.zeros(2)}
GRADS = jax.tree.map(lambda p: jnp.linspace(0.1, 1.0, p.size).reshape(p.shape), PARAMS)


def test_linear_schedule_counts_optimizer_steps_not_batches():
    # 10 batches of 4 mini-batches. A horizon of 10 would be at 0 after the third batch.
    config = OptimizerConfig(learning_rate=1.0, schedule="linear")
    schedule = make_schedule(config, total_steps=10 * 4)
    assert float(schedule(0)) == 1.0
    assert float(schedule(10)) == pytest.approx(0.75)
    assert float(schedule(39)) == pytest.approx(1 / 40)


def test_warmup_wastes_no_step_and_reaches_the_peak():
    config = OptimizerConfig(learning_rate=0.8, schedule="linear", warmup_steps=4)
    rates = [float(make_schedule(config, total_steps=8)(step)) for step in range(9)]
    # rise: 0.8 * (1, 2, 3, 4) / 4; fall over the remaining 4 steps: 0.8 * (4, 3, 2, 1) / 4
    np.testing.assert_allclose(rates, [0.2, 0.4, 0.6, 0.8, 0.8, 0.6, 0.4, 0.2, 0.0], atol=1e-6)


def test_cosine_and_constant():
    cosine = make_schedule(OptimizerConfig(learning_rate=2.0, schedule="cosine"), 10)
    np.testing.assert_allclose([cosine(0), cosine(5), cosine(10)], [2.0, 1.0, 0.0], atol=1e-6)
    assert float(make_schedule(OptimizerConfig(learning_rate=2.0), 1)(1000)) == 2.0


@pytest.mark.parametrize("name", optimizer_names())
def test_every_optimizer_takes_a_step(name):
    optimizer = make_optimizer(OptimizerConfig(name=name, learning_rate=0.01), 10)
    # Some (adopt, rprop) only look at the first gradient.
    _, state = optimizer.update(GRADS, optimizer.init(PARAMS), PARAMS)
    updates, _ = optimizer.update(GRADS, state, PARAMS)
    assert all(bool(jnp.isfinite(u).all()) for u in jax.tree.leaves(updates))
    assert any(bool((u != 0).any()) for u in jax.tree.leaves(updates))


@pytest.mark.parametrize("name", optimizer_names())
def test_updates_that_are_matrix_products_are_kept(name):
    """They are made once a step, others twice: to be looked at, and in place."""
    config = OptimizerConfig(name=name, learning_rate=0.01)
    optimizer = make_optimizer(config, 10)
    program = jax.make_jaxpr(optimizer.update)(GRADS, optimizer.init(PARAMS), PARAMS)
    # Two arrays multiplied to a number, as for some step sizes, are no such product.
    matrix_product = re.search(r":f32\[\d+,[\d,]+\] = dot_general", str(program))
    assert (matrix_product is not None) == (config.check == "kept updates")


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({}, "gradients"),
        ({"name": "adam", "weight_decay": 0.0}, "gradients"),
        ({"options": {"b1": 0, "b2": 0.999999, "eps": 1e-16}}, "gradients"),
        # 0 / 0 at a gradient of 0; 1 - b2 that float32 rounds to 0; a sum that never decays.
        ({"options": {"eps": 0.0}}, "updates"),
        ({"options": {"b2": 0.99999999}}, "updates"),
        ({"options": {"b1": 1.0}}, "updates"),
        ({"options": {"mu_dtype": jnp.float16}}, "updates"),
        ({"options": {"eps_root": -1.0}}, "updates"),
        ({"max_grad_norm": None}, "updates"),
        ({"max_grad_norm": 1e30}, "updates"),
        ({"learning_rate": 1e30}, "updates"),
        ({"weight_decay": 1e30}, "updates"),
        ({"name": "rmsprop", "weight_decay": 0.0}, "updates"),
        ({"name": "muon"}, "kept updates"),
    ],
    ids=str,
)
def test_what_is_looked_at(changes, check):
    """Of Adam, gradients alone where finite ones cannot make an update that is not."""
    assert OptimizerConfig(**{"learning_rate": 1.0, "weight_decay": 1.0, **changes}).check == check


extremes = st.sampled_from([0.0, 1e-45, -1e-30, 1e-22, 1.0, -3e10, 9e18])


@given(
    gradients=st.lists(st.lists(extremes, min_size=3, max_size=3), min_size=1, max_size=6),
    b1=st.sampled_from([0.0, 0.9, 1 - 1e-6]),
    b2=st.sampled_from([0.0, 0.3, 0.999, 1 - 1e-6]),
    eps=st.sampled_from([1e-16, 1e-8, 1.0]),
    clip=st.sampled_from([1e-3, 1.0, 1e6]),
    name=st.sampled_from(["adam", "adamw"]),
)
def test_finite_gradients_make_finite_updates_where_only_they_are_looked_at(
    gradients, b1, b2, eps, clip, name
):
    options = {"b1": b1, "b2": b2, "eps": eps}
    config = OptimizerConfig(name=name, learning_rate=1.0, max_grad_norm=clip, options=options)
    assert config.check == "gradients"
    optimizer = make_optimizer(config, 10)
    params = {"w": jnp.asarray([3e38, -1e-40, 1.0])}
    state = optimizer.init(params)
    for gradient in gradients:
        updates, state = optimizer.update({"w": jnp.asarray(gradient)}, state, params)
        assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves((updates, state)))


def test_it_is_optax_itself_with_clipping_before():
    config = OptimizerConfig(
        name="adamw", learning_rate=0.1, weight_decay=0.3, max_grad_norm=0.5, options={"b2": 0.9}
    )
    ours = make_optimizer(config, 10)
    theirs = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(0.1, b2=0.9, weight_decay=0.3))
    for optimizer in (ours, theirs):
        state = optimizer.init(PARAMS)
        first, state = optimizer.update(GRADS, state, PARAMS)
        second, _ = optimizer.update(GRADS, state, optax.apply_updates(PARAMS, first))
        if optimizer is ours:
            expected = second
    jax.tree.map(np.testing.assert_array_equal, expected, second)


def test_clipping_takes_the_norm_that_is_given():
    """Whoever looked at the gradients has it; an optimizer without a use for it never sees it."""
    clipped = make_optimizer(OptimizerConfig(name="sgd", learning_rate=1.0, max_grad_norm=2.0), 10)
    own, _ = clipped.update(GRADS, clipped.init(PARAMS), PARAMS)
    told, _ = clipped.update(GRADS, clipped.init(PARAMS), PARAMS, grad_norm=jnp.float32(8.0))
    # The gradient is scaled by 2 / norm, and 8 is not its norm.
    norm = optax.tree.norm(GRADS)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x * norm / 8, y, rtol=1e-6), own, told)


def test_weight_decay_zero_is_zero():
    # optax.adamw decays by 1e-4 unless told otherwise.
    zeros = jax.tree.map(jnp.zeros_like, PARAMS)
    optimizer = make_optimizer(OptimizerConfig(learning_rate=1.0), 10)
    updates, _ = optimizer.update(zeros, optimizer.init(PARAMS), PARAMS)
    assert all(not u.any() for u in jax.tree.leaves(updates))


def test_muon_leaves_embedding_and_vectors_to_adam():
    optimizer = make_optimizer(OptimizerConfig(name="muon", learning_rate=0.1), 10)
    state = optimizer.init(PARAMS)
    adam = jax.tree_util.tree_flatten_with_path(state[1].inner_states["adam"])[0]
    names = {jax.tree_util.keystr(path) for path, _ in adam}
    assert any("embed" in name for name in names)
    assert any("bias" in name for name in names)
    assert not any("kernel" in name for name in names)


def test_same_arguments_give_the_same_optimizer_so_programs_are_reused():
    def config(b2):
        return OptimizerConfig(learning_rate=0.1, options={"b2": b2})

    assert make_optimizer(config(0.9), 10) is make_optimizer(config(0.9), 10)
    assert make_optimizer(config(0.9), 10) is not make_optimizer(config(0.95), 10)
    assert pickle.loads(pickle.dumps(config(0.9))) == config(0.9)


@pytest.mark.parametrize(
    "settings, message",
    [
        (
            {"name": "adamv"},
            "Unknown optimizer 'adamv'. Did you mean 'adam' or 'radam' or 'adamw'? Known: acprop,",
        ),
        (
            {"options": {"beta_2": 0.9}},
            "Unknown option of the optimizer 'adamw' 'beta_2'. Known: b1, b2, eps,",
        ),
        (
            {"name": "sgd", "weight_decay": 0.1},
            "The optimizer 'sgd' has no weight decay, but weight_decay=0.1; set it to 0 or "
            "choose an optimizer that has, e.g. 'adamw'.",
        ),
        (
            {"options": {"learning_rate": 0.1}},
            "Give learning_rate as the field learning_rate, not in options.",
        ),
        (
            {"name": "lbfgs"},
            "The optimizer 'lbfgs' is not supported: it evaluates the loss during its step.",
        ),
        ({"schedule": "linaer"}, "Unknown schedule 'linaer'. Did you mean 'linear'?"),
        ({"learning_rate": -1.0}, "learning_rate must be a number >= 0, got -1.0."),
        ({"learning_rate": "fast"}, "learning_rate must be a number >= 0, got 'fast'."),
        ({"max_grad_norm": 0.0}, "max_grad_norm must be a number > 0, got 0.0."),
        ({"warmup_steps": 1.5}, "warmup_steps must be an integer >= 0, got 1.5."),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ZootomyError) as error:
        OptimizerConfig(**settings)
    assert str(error.value).startswith(message)


def test_schedules_that_cannot_be():
    with pytest.raises(ZootomyError, match="takes no schedule; use schedule='constant'"):
        make_optimizer(OptimizerConfig(name="rprop", schedule="linear"), 10)
    with pytest.raises(ZootomyError, match="warmup_steps=10 is not shorter than the run of 10"):
        make_schedule(OptimizerConfig(warmup_steps=10), 10)
