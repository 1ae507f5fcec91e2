"""What every registered block must do, whatever it computes; generated from the registry.

Block modules are imported by the package; a block added to it is tested here without a word.
"""

import inspect

import contract_inputs as given
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zootomy.blocks  # registers every block
from zootomy.registry import ZootomyError, describe, names, slot

pytestmark = pytest.mark.contract

ALL = [*given.BLOCKS, *(("controller", name) for name in names("controller"))]


def label(key):
    return f"{key[0]}-{key[1]}"


every_block = pytest.mark.parametrize("key", given.BLOCKS, ids=label)
blocks_on_tokens = pytest.mark.parametrize("key", given.TOKEN_BLOCKS, ids=label)


@every_block
def test_jit_and_vmap_equal_eager_and_new_values_do_not_retrace(key):
    traces = []

    @jax.jit
    @jax.vmap
    def compiled(data):
        traces.append(1)
        return given.call(key, data)

    first, second = given.make(key, seed=1), given.make(key, seed=2)
    both = jax.tree.map(lambda a, b: jnp.stack([a, b]), first, second)
    got = compiled(both)
    for row, data in enumerate((first, second)):
        for a, b in zip(got, given.call(key, data), strict=True):
            np.testing.assert_allclose(a[row], b, rtol=1e-5, atol=1e-6)
    compiled(jax.tree.map(lambda x: x[::-1], both))
    assert len(traces) == 1


@blocks_on_tokens
def test_masked_entries_are_inert(key):
    data = given.make(key)
    want = given.call_with_gradients(key, given.corrupt(data, 0.0))
    for bad in (np.nan, np.inf, -np.inf):
        got = given.call_with_gradients(key, given.corrupt(data, bad))
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", names("kl_estimator"))
def test_kl_estimators_take_each_entry_alone(name):
    key = ("kl_estimator", name)
    data = given.make(key)
    want = given.call_with_gradients(key, data)
    spoilt = {**data, "logp": data["logp"].at[0, 0].set(jnp.nan)}
    for a, b in zip(given.call_with_gradients(key, spoilt), want, strict=True):
        np.testing.assert_array_equal(a[1:], b[1:])
        np.testing.assert_array_equal(a[0, 1:], b[0, 1:])


@pytest.mark.parametrize(
    "key", [key for key in given.BLOCKS if key[0] in ("reward_shaping", "group_filter")], ids=label
)
def test_invalid_completions_are_inert(key):
    data = given.make(key)
    valid = data["info"].valid if "info" in data else data["valid"]
    want = given.call(key, {**data, "rewards": jnp.where(valid, data["rewards"], 0)})
    for bad in (np.nan, np.inf):
        spoilt = {**data, "rewards": jnp.where(valid, data["rewards"], bad)}
        for a, b in zip(given.call(key, spoilt), want, strict=True):
            np.testing.assert_array_equal(a, b)


@every_block
def test_half_precision_in_single_precision_out(key):
    data = jax.tree.map(
        lambda x: x.astype(jnp.bfloat16) if jnp.issubdtype(x.dtype, jnp.floating) else x,
        given.make(key),
    )
    single = jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x, data)
    for a, b in zip(given.call(key, data), given.call(key, single), strict=True):
        assert a.dtype in (jnp.float32, jnp.bool_)
        np.testing.assert_allclose(a, b, rtol=1e-6)


@blocks_on_tokens
def test_rows_without_an_action_and_batches_without_any(key):
    data = given.make(key)
    one_empty = {**data, "mask": data["mask"].at[0].set(0)}
    for out in given.call_with_gradients(key, one_empty):
        assert np.isfinite(out).all()
    empty = {**data, "mask": jnp.zeros_like(data["mask"])}
    for out in given.call_with_gradients(key, empty):
        np.testing.assert_array_equal(out, np.zeros_like(out))


@every_block
def test_a_single_entry_is_finite(key):
    for out in given.call_with_gradients(key, given.make(key, n=1, t=1)):
        assert np.isfinite(out).all()


@every_block
def test_permuted_rows_give_permuted_results(key):
    data = given.make(key)
    order = np.array([2, 0, 3, 1])

    def permuted(name, x):
        if name == "info":
            info = x._asdict()
            # the weights belong to the reward functions, not to the prompts
            axis = {"components": 1}
            return x._replace(
                **{k: jnp.take(v, order, axis.get(k, 0)) for k, v in info.items() if k != "weights"}
            )
        return x[order]

    shuffled = {name: permuted(name, x) for name, x in data.items()}
    for a, b in zip(
        given.call_with_gradients(key, shuffled),
        given.call_with_gradients(key, data),
        strict=True,
    ):
        np.testing.assert_allclose(a, b[order], rtol=1e-5, atol=1e-6)


@every_block
def test_gradients_are_finite_far_away(key):
    data = given.make(key)
    if "logp" in data:
        sign = jnp.where(jnp.arange(5) % 2 == 0, 100.0, -100.0)
        far = sign if data["logp"].ndim == 2 else sign[:, None]
        data["logp"] = jnp.minimum(data["logp"], 0) * 0 - 101.0
        for name in ("old_logp", "ref_logp", "rollout_logp"):
            if name in data:
                data[name] = data["logp"] - far
    if "log_ratio" in data:
        data["log_ratio"] = jnp.broadcast_to(sign, data["log_ratio"].shape)
    if "rollout_logp" in data and "logp" not in data:
        data["rollout_logp"] = data["old_logp"] - 100.0 * (-1.0) ** jnp.arange(5)
    for name in ("chosen_logp", "chosen"):
        if name in data:
            up = jnp.asarray([-101.0, -101.0, -1.0, -201.0])
            down = jnp.asarray([-1.0, -201.0, -101.0, -101.0])
            wide = data[name].ndim == 2
            data[name] = up[:, None] * jnp.ones(2) if wide else up
            data[name.replace("chosen", "rejected")] = down[:, None] * jnp.ones(2) if wide else down
    for out in given.call_with_gradients(key, data):
        assert np.isfinite(out).all()


@pytest.mark.parametrize("key", ALL, ids=label)
def test_documented(key):
    info = describe(*key)
    text = inspect.getdoc(info.function) or ""
    head, _, rest = text.partition("\nArgs:")
    assert info.summary.endswith((".", "?")), "a summary is one line that ends with a stop"
    assert any(line.startswith("    ") for line in head.splitlines()), "no formula"
    assert "Source:" in text
    assert "Returns:" in text
    arguments, _, _ = rest.partition("Returns:")
    for name in (*slot(key[0]).inputs, *info.extras, *info.hyperparameters):
        line = next(
            (line for line in arguments.splitlines() if line.strip().startswith(f"{name}:")), None
        )
        assert line is not None, f"{name} is not documented"
        if name != "info" and name not in info.hyperparameters:
            assert "`[" in line or "not used" in line, f"{name} has no shape"


@pytest.mark.parametrize(
    "key, name",
    [(key, name) for key in given.BLOCKS for name in describe(*key).hyperparameters],
    ids=lambda part: part if isinstance(part, str) else label(part),
)
def test_every_hyperparameter_changes_something(key, name):
    entry = describe(*key).hyperparameters[name]
    batches = [
        given.make(key),
        given.make(key, seed=3, scale=60.0),
        given.make(key, seed=4, scale=8.0),
        given.make(key, seed=5, sparse=True),
    ]
    if "logits" in describe(*key).needs_when:
        batches.append(given.make(key, seed=6, wide=True))
    for around in given.companions(key, name):
        for batch in batches:
            base = given.attempt(key, batch, **around)
            if base is None:
                continue
            for value in given.other_values(entry.annotation, entry.default):
                got = given.attempt(key, batch, **{**around, name: value})
                if got is not None and not given.same(got, base):
                    return
    pytest.fail(f"{name} never changed the result")


@pytest.mark.parametrize("name", names("controller"))
def test_controllers_are_pure_and_every_hyperparameter_moves_them(name):
    info = describe("controller", name)

    def path(**hyper):
        made = info.function(**hyper)
        state, found = made.init(), []
        for step in range(4):
            metrics = {"kl": 0.3 * step, "entropy": 0.3 * step, "sequences": 7.0}
            before = dict(state)
            new, coefficient = made.update(state, metrics)
            assert state == before
            assert made.update(before, metrics) == (new, coefficient)
            state = new
            found.append(coefficient)
        return found

    def attempt(**hyper):
        try:
            return path(**hyper)
        except ZootomyError:
            return None

    for other, entry in info.hyperparameters.items():
        values = given.other_values(entry.annotation, entry.default)
        assert any(
            base is not None and attempt(**{**around, other: value}) not in (None, base)
            for around in given.companions(("controller", name), other)
            for base in [attempt(**around)]
            for value in values
        ), other


def test_the_package_brings_its_blocks():
    assert zootomy.blocks.TokenLoss is not None
    assert len(given.BLOCKS) > 30
