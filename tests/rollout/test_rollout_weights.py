"""New weights: nothing old remains, nothing compiles, a wrong tree is named."""

import dataclasses
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from zootomy import ZootomyError
from zootomy.models import PRESETS, make_model
from zootomy.rollout import Request, RolloutConfig, VanillaEngine
from zootomy.rollout.weights import as_they_are, named_params

CONFIG = RolloutConfig(max_prompt_tokens=8, max_new_tokens=6, temperature=0.0)
REQUESTS = [Request((3, 1, 4), n=1), Request((1, 5), n=2)]
FIRST = "embed_tokens.embedding"


def model_of(seed):
    # a free head and wide weights: a tied one mostly repeats the last token
    preset = dataclasses.replace(PRESETS["tiny"], tie_embeddings=False, initializer_range=0.3)
    return make_model(preset, seed=seed, vocab_size=19)


@pytest.fixture(scope="module")
def programs():
    return VanillaEngine(CONFIG, model_of(0))._programs


@pytest.fixture
def engine(programs):
    """An engine of its own over shared programs, which hold no weights."""
    engine = VanillaEngine(CONFIG, model_of(0))
    engine._programs = programs
    return engine


def outputs(engine):
    found = [c for group in engine.generate(REQUESTS, CONFIG.sampling()) for c in group]
    return np.stack([c.tokens for c in found]), np.stack([c.logp for c in found]), found[0].version


def test_after_an_update_greedy_is_that_of_a_fresh_engine(engine):
    old, _, version = outputs(engine)
    assert version == 0
    compiled = engine.compilations
    new_model = model_of(1)
    engine.update_weights(nnx.state(new_model), 5)
    tokens, logps, version = outputs(engine)
    want_tokens, want_logps, _ = outputs(VanillaEngine(CONFIG, new_model))
    np.testing.assert_array_equal(tokens, want_tokens)
    np.testing.assert_array_equal(logps, want_logps)
    assert version == engine.version == 5
    assert not np.array_equal(tokens, old)
    assert engine.compilations == compiled


def test_a_model_its_state_and_named_arrays_are_the_same_weights(engine):
    new_model = model_of(1)
    named = named_params(new_model)
    prefix = "layers."
    named_layers = {n.removeprefix(prefix): x for n, x in named.items() if n.startswith(prefix)}
    found = []
    for weights in (
        new_model,
        nnx.state(new_model),
        nnx.state(new_model, nnx.Param),
        named_params(new_model),
        nnx.to_pure_dict(nnx.state(new_model, nnx.Param)),
        {"layers": named_layers, **{n: x for n, x in named.items() if not n.startswith("layers")}},
    ):
        engine.update_weights(nnx.state(model_of(0)), 1)
        engine.update_weights(weights, 2)
        found.append(outputs(engine)[1])
    for logps in found[1:]:
        np.testing.assert_array_equal(logps, found[0])


def test_weights_are_shared_and_other_dtypes_are_cast(engine):
    named = named_params(model_of(1))
    engine.update_weights(named, 1)
    mine = named_params(engine._params)[FIRST]
    assert mine.unsafe_buffer_pointer() == named[FIRST].unsafe_buffer_pointer()
    engine.update_weights({k: v.astype(jnp.bfloat16) for k, v in named.items()}, 2)
    assert named_params(engine._params)[FIRST].dtype == jnp.float32


def test_a_state_that_lies_alike_is_taken_array_by_array_or_not_at_all(engine):
    mine = engine._params
    given = jax.tree.map(lambda x: jax.device_put(x + 1.0, x.sharding), mine)
    assert as_they_are(mine, given) is not None
    engine.update_weights(given, 1)
    for ours, theirs in zip(*map(jax.tree.leaves, (engine._params, given)), strict=True):
        assert ours is theirs
    # Another dtype, another device; no device of its own, or a dtype that gives way to others (the
    # next call would compile anew).
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), given)
    away = jax.device_put(given, jax.devices()[1])
    unbound = jax.tree.map(lambda x: jnp.asarray(np.asarray(x)), given)
    weak = jax.tree.map(lambda x: jax.device_put(jnp.full(x.shape, 0.1), x.sharding), given)
    assert jax.tree.leaves(weak)[0].weak_type
    for other in (half, away, unbound, weak):
        assert as_they_are(mine, other) is None
        engine.update_weights(other, 2)
        assert as_they_are(mine, engine._params) is not None
    # Shapes are compared, not only paths.
    assert as_they_are(mine, jax.tree.map(lambda x: x[:-1], given)) is None


def test_weights_on_other_devices_come_to_the_engines_and_compile_nothing(engine, caplog):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    engine.update_weights(model_of(1), 1)
    want = outputs(engine)[1]
    spread = {
        path: jax.device_put(
            x, rows if x.shape[0] % 8 == 0 else NamedSharding(mesh, PartitionSpec())
        )
        for path, x in named_params(model_of(1)).items()
    }
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        engine.update_weights(spread, 2)
        found = outputs(engine)[1]
    np.testing.assert_array_equal(found, want)
    assert [r.message for r in caplog.records if "Finished XLA" in r.message] == []


def update_error(engine, weights, version=1):
    before = named_params(engine._params)
    with pytest.raises(ZootomyError) as error:
        engine.update_weights(weights, version)
    assert engine.version == 0
    assert named_params(engine._params)[FIRST] is before[FIRST]
    return str(error.value)


def test_a_wrong_tree_names_the_first_path_and_changes_nothing(engine):
    named = named_params(model_of(1))
    norm = "layers.0.input_layernorm.scale"
    lacking = {k: v for k, v in named.items() if k not in (norm, "norm.scale")}
    assert update_error(engine, lacking) == (
        f"weights lack {norm!r}; every parameter is sent at once"
    )
    assert update_error(engine, {**named, "layers.0.lora_a": jnp.ones(2)}) == (
        "weights hold 'layers.0.lora_a', which the engine's model does not have; send the weights "
        "of the model the engine was made with (adapters merged)"
    )
    assert update_error(engine, {**named, norm: jnp.ones(3), "norm.scale": jnp.ones(4)}) == (
        f"weights at {norm!r} have shape (3,); the engine's have (32,)"
    )
    assert update_error(engine, {**named, norm: jnp.ones(32, jnp.int32)}) == (
        f"weights at {norm!r} are int32; expected floats"
    )
    nested = nnx.to_pure_dict(nnx.state(model_of(1), nnx.Param))
    nested["layers"][0]["mlp"]["extra"] = {"kernel": jnp.ones(2)}
    assert update_error(engine, nested) == (
        "weights hold 'layers.0.mlp.extra.kernel', which the engine's model does not have; send "
        "the weights of the model the engine was made with (adapters merged)"
    )
    assert update_error(engine, [1]) == (
        "weights are a list; expected a model, its nnx.State, a mapping from dotted path to array, "
        "or nested dicts of arrays"
    )
    assert update_error(engine, named, version=-1) == "version is -1; expected an integer >= 0"


def test_weights_that_a_trainer_donated_are_noticed(engine):
    step = jax.jit(lambda s: jax.tree.map(lambda x: x * 2, s), donate_argnums=0)
    model = model_of(1)
    state = nnx.state(model)
    engine.update_weights(state, 4)
    new = step(state)
    with pytest.raises(ZootomyError) as error:
        outputs(engine)
    assert str(error.value) == (
        "the engine's weights (version 4) were donated or deleted, "
        "'embed_tokens.embedding' first; call update_weights with the new ones"
    )
    engine.update_weights(new, 5)
    assert outputs(engine)[2] == 5


def test_a_closed_engine_says_so(engine):
    engine.close()
    engine.close()
    for call in (lambda: outputs(engine), lambda: engine.update_weights({}, 1)):
        with pytest.raises(ZootomyError, match=r"^the engine is closed; make a new one$"):
            call()


def test_prompts_are_shared_on_a_mesh_where_they_divide_over_it():
    mesh = jax.make_mesh((4, 2), ("data", "fsdp"), axis_types=(AxisType.Auto,) * 2)
    whole = NamedSharding(mesh, PartitionSpec())
    graph, params, rest = nnx.split(model_of(0), nnx.Param, ...)
    model = nnx.merge(graph, jax.device_put(params, whole), rest)
    spread, alone = VanillaEngine(CONFIG, model), VanillaEngine(CONFIG, model_of(0))

    def places(engine, counts):
        return engine._places(counts, counts)[1:]

    assert places(alone, [3] * 8) == places(spread, [3] * 8) == (24, 3)
    # 6 prompts do not divide over 8 devices, nor would 18 slots: 24 do
    assert places(alone, [3] * 6) == (18, 3)
    assert places(spread, [3] * 6) == (24, 1)
    # more than there are slots for, or not as many from each
    assert places(spread, [3] * 24) == (64, 1)
    assert places(alone, [3, 2]) == (6, 1)
    requests = [Request((n + 1, 2, n), n=3) for n in range(8)]
    sampling = dataclasses.replace(CONFIG.sampling(), temperature=1.0)
    for a, b in zip(
        *(e.generate(requests, sampling, seed=2) for e in (spread, alone)), strict=True
    ):
        assert [c.tokens.tolist() for c in a] == [c.tokens.tolist() for c in b]
