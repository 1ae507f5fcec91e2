"""What must hold for every algorithm: splits, masked entries, jit, retracing, the first ratio."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zoo_inputs import couples
from zootomy import Algorithm, algorithm, algorithms, assemble, block
from zootomy.learners import Outputs, Rollouts
from zootomy.registry import names

P, G, T = 2, 2, 3
N = P * G
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}

# What the zoo's own entries leave out: other losses, placements and terms.
EXTRA = {
    "gspo+icepop": {"correction.denominator": "kept"},
    "grpo": {"regularizer": [block("entropy", coef=0.1), block("kl", coef=0.2)]},
    "dual_clip_ppo": {"policy_loss.clip_dual": 1.5},
}
# Each compiles programs of its own; the rest of the zoo is tried uncompiled, and among the slow.
FAST = ("ppo", "reinforce", "rloo", "reinforce_pp", "pico", "dr_grpo", "dapo", "gspo_token", "vapo",
        "prorl_v2")  # fmt: skip
NAMES = [
    *FAST,
    *EXTRA,
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in algorithms()
        if name not in (*FAST, *EXTRA, "dual_clip_ppo", "grpo")
    ),
]


@functools.cache
def build(name):
    return algorithm(name, **EXTRA.get(name, {})).resolve_length(T)


def loss_of(objective, arrays, batch, coefficients, weights):
    logp, entropy, values = arrays
    loss = objective(Outputs(logp, entropy, values), batch, coefficients, weights)
    return loss.total, loss


@functools.cache
def programs(name):
    """The experience, and loss with gradient; each one compiled once for an algorithm."""
    experience, objective = assemble(build(name))
    with_gradient = jax.value_and_grad(loss_of, argnums=1, has_aux=True, allow_int=True)
    return (
        jax.jit(experience, compiler_options=QUICK),
        jax.jit(functools.partial(with_gradient, objective), compiler_options=QUICK),
    )


@functools.cache
def weights_program(aggregation):
    return jax.jit(assemble(Algorithm(aggregation=aggregation)).weights, compiler_options=QUICK)


def draw(seed, *, masked=0.0, old=True):
    """Random rollouts and model outputs; masked and invalid entries hold `masked`."""
    rng = np.random.default_rng(seed)
    mask = rng.random((N, T)) < 0.7
    valid = rng.random((P, G)) < 0.8
    hidden = ~(mask & valid.reshape(-1, 1))

    def tokens(low, high):
        x = rng.uniform(low, high, (N, T)).astype(np.float32)
        return np.where(hidden, np.float32(masked), x)

    rewards = rng.normal(size=(P, G)).astype(np.float32)
    rollouts = Rollouts(
        rewards=np.where(valid, rewards, np.float32(masked)),
        valid=valid,
        mask=mask.astype(np.float32),
        truncated=rng.random((P, G)) < 0.5,
        old_logp=tokens(-2, -0.1),
        rollout_logp=tokens(-2, -0.1),
        ref_logp=tokens(-2, -0.1),
        values=tokens(-1, 1),
        components=np.where(valid, rng.normal(size=(2, P, G)), masked).astype(np.float32),
        baseline=rng.normal(size=P).astype(np.float32),
        scale=rng.uniform(0.5, 2, P).astype(np.float32),
    )
    outputs = (tokens(-2, -0.1), tokens(0, 2), tokens(-1, 1))
    if not old:
        rollouts = rollouts._replace(old_logp=outputs[0])
    return rollouts, outputs


def outputs_for(name, outputs):
    logp, entropy, values = outputs
    return logp, entropy, values if build(name).value_loss is not None else None


def evaluate(name, seed, **options):
    """Experience, loss and gradient on a whole random batch."""
    rollouts, outputs = draw(seed, **options)
    experience, with_gradient = programs(name)
    batch, _ = experience(rollouts, {"kl": 0.3})
    weights = weights_program(build(name).aggregation)(batch.counted, batch.group_ids)
    (total, loss), grads = with_gradient(outputs_for(name, outputs), batch, {"kl": 0.3}, weights)
    return batch, total, loss, grads


def assert_same(one, other, **tolerance):
    left, right = jax.tree.leaves(one), jax.tree.leaves(other)
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), **tolerance)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=12)
@given(data=st.data())
def test_any_split_gives_the_whole(name, data):
    """Micro-batches as the cluster makes them: any rows, in any number of parts, empty slots 0."""
    if couples(build(name)):
        return  # the learner does not cut its mini-batches
    rollouts, outputs = draw(data.draw(st.integers(0, 2**31)))
    outputs = outputs_for(name, outputs)
    aggregation = data.draw(st.sampled_from(names("aggregation")))
    part_of = np.array(data.draw(st.lists(st.integers(0, 2), min_size=N, max_size=N)))
    experience, with_gradient = programs(name)
    batch, _ = experience(rollouts, {"kl": 0.3})
    batch = jax.tree.map(np.asarray, batch)
    weights = np.asarray(weights_program(aggregation)(batch.counted, batch.group_ids))
    whole, gradient = with_gradient(outputs, batch, {"kl": 0.3}, weights)

    totals, losses, gradients = 0.0, [], jax.tree.map(np.zeros_like, outputs)
    for part in range(3):
        rows = np.flatnonzero(part_of == part)

        def take(leaf, rows=rows):
            taken = np.zeros_like(leaf)
            taken[: len(rows)] = leaf[rows]
            return taken

        some = jax.tree.map(take, (outputs, batch, weights))
        (total, loss), found = with_gradient(some[0], some[1], {"kl": 0.3}, some[2])
        totals += float(total)
        losses.append(loss)
        for into, of in zip(jax.tree.leaves(gradients), jax.tree.leaves(found), strict=True):
            into[rows] += np.asarray(of)[: len(rows)]
            assert (np.asarray(of)[len(rows) :] == 0).all()
    np.testing.assert_allclose(totals, float(whole[0]), rtol=1e-5, atol=1e-6)
    assert_same(gradients, gradient, rtol=1e-5, atol=1e-6)
    for attribute in ("parts", "metrics"):
        added = jax.tree.map(lambda *x: sum(x), *(getattr(loss, attribute) for loss in losses))
        assert_same(added, getattr(whole[1], attribute), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_masked_or_invalid_is_inert(name):
    for seed in (1, 2, 3):
        expected = evaluate(name, seed, masked=0.0)
        for junk in (np.nan, np.inf, -1e30):
            found = evaluate(name, seed, masked=junk)
            assert_same(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_the_first_ratio_is_one(name):
    """With `old_logp` left out, or equal to `logp`: the same value and gradient, bit for bit."""
    chosen = build(name)
    if chosen.bypasses:
        return  # its ratio is to the engine
    rollouts, outputs = draw(5, old=False)
    outputs = outputs_for(name, outputs)
    experience, with_gradient = programs(name)
    batch, _ = experience(rollouts, {"kl": 0.3})
    if chosen.correction is not None:
        batch = batch._replace(correction=jnp.ones_like(batch.mask))
    weights = weights_program(chosen.aggregation)(batch.counted, batch.group_ids)
    given_old = with_gradient(outputs, batch, {"kl": 0.3}, weights)
    (_, loss), _ = without = with_gradient(
        outputs, batch._replace(old_logp=None), {"kl": 0.3}, weights
    )
    assert_same(without, given_old, rtol=0, atol=0)
    assert float(loss.metrics["approx_kl"][0]) == 0.0
    if "clip_ratio" in loss.metrics and not couples(chosen):
        assert float(loss.metrics["clip_ratio"][0]) == 0.0


@pytest.mark.parametrize("name", NAMES)
def test_jit_is_eager_and_coefficients_do_not_retrace(name):
    rollouts, outputs = draw(7)
    outputs = outputs_for(name, outputs)
    jitted, with_gradient = programs(name)
    weights = weights_program(build(name).aggregation)

    def loss(coefficient):
        coefficients = {"kl": coefficient}
        batch, metrics = jitted(rollouts, coefficients)
        counts = weights(batch.counted, batch.group_ids)
        return batch, metrics, with_gradient(outputs, batch, coefficients, counts)[0][1]

    first = loss(0.3)
    compiled = jitted._cache_size(), with_gradient._cache_size()
    second = loss(0.9)
    # The caches may shrink meanwhile, since all programs of the process share their room.
    assert jitted._cache_size() <= compiled[0]
    assert with_gradient._cache_size() <= compiled[1]
    if build(name).kl_placement != "none":
        assert float(second[2].total) != float(first[2].total)

    experience, objective = assemble(build(name))
    with jax.disable_jit():
        batch, metrics = experience(rollouts, {"kl": 0.3})
        eager = batch, metrics, objective(Outputs(*outputs), batch, {"kl": 0.3})
    assert_same(first, eager, rtol=1e-4, atol=1e-5)


def test_a_batch_without_an_action_teaches_nothing():
    for name in (*FAST, *EXTRA):
        rollouts, outputs = draw(11)
        rollouts = rollouts._replace(valid=np.zeros((P, G), bool))
        experience, with_gradient = programs(name)
        batch, metrics = experience(rollouts, {"kl": 0.3})
        weights = weights_program(build(name).aggregation)(batch.counted, batch.group_ids)
        (total, loss), grads = with_gradient(
            outputs_for(name, outputs), batch, {"kl": 0.3}, weights
        )
        assert float(total) == 0.0, name
        assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(grads)), name
        for total, weight in [*metrics.values(), *loss.metrics.values()]:
            assert float(total) == float(weight) == 0.0, name
