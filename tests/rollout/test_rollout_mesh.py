"""Decoding on a mesh: what a step sends between devices, which is no row's and no cache's."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from zootomy.models import PRESETS, Decoder, parameter_axes
from zootomy.rollout import Request, RolloutConfig, VanillaEngine
from zootomy.rollout.sampling import BLOCK

LAYERS, WIDTH, VOCAB, SLOTS = 2, 16, 2048, 16
# Four query heads of width 8 read two key heads.
CONFIG = dataclasses.replace(
    PRESETS["tiny"], vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=32, num_layers=LAYERS,
    num_heads=4, num_kv_heads=2, head_dim=8, initializer_range=0.5,
)  # fmt: skip
HEADS = ("heads", "kv_heads", "mlp")
REQUESTS = [Request((7, 5, 3, 1)[: 1 + n % 4], n=4) for n in range(4)]


def spread(axes, over_tensor=HEADS, config=CONFIG):
    """The model on a mesh, what is named spread over `tensor` where that is one of the axes."""
    model = Decoder(config, rngs=nnx.Rngs(0))
    mesh = jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def place(path, variable):
        names = parameter_axes(path, variable[...].ndim)
        spec = ["tensor" if name in over_tensor and "tensor" in axes else None for name in names]
        return variable.replace(
            jax.device_put(variable[...], NamedSharding(mesh, PartitionSpec(*spec)))
        )

    flat = [(path, place(path, variable)) for path, variable in nnx.to_flat_state(params)]
    return nnx.merge(graph, nnx.from_flat_state(flat), rest)


def sampled(model):
    """Tokens and log-probabilities of a call, and the program that decoded."""
    config = RolloutConfig(max_prompt_tokens=4, max_new_tokens=20, max_slots=SLOTS)
    engine, decoders = VanillaEngine(config, model), []
    decode = engine._programs.decode

    def keep(*given, **named):
        decoders.append(decode.lower(*given, **named).compile())
        return decode(*given, **named)

    engine._programs.decode = keep
    groups = engine.generate(REQUESTS, config.sampling(stop_ids=(3, 8)), 5)
    flat = [completion for group in groups for completion in group]
    return [x.tokens for x in flat], np.concatenate([x.logp for x in flat]), decoders[0]


@pytest.fixture(scope="module")
def alone():
    return sampled(Decoder(CONFIG, rngs=nnx.Rngs(0)))


def same(found, expected):
    for ours, theirs in zip(found[0], expected[0], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_allclose(found[1], expected[1], atol=2e-5)


# What each attention and MLP adds up, and the embedding, of which a device reads its own tokens.
ADDED = (2 * LAYERS + 1) * SLOTS * WIDTH


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        ({"data": 4}, {}),
        ({"tensor": 2}, {"all-reduce": ADDED}),
        # Four devices hold two key heads between them: both get keys and values of 8 of each.
        ({"tensor": 4}, {"all-reduce": ADDED, "all-gather": LAYERS * 2 * SLOTS * 2 * 8}),
        ({"data": 2, "tensor": 2}, {"all-reduce": ADDED // 2}),
    ],
    ids=str,
)
def test_a_step_sends_what_it_must(alone, sent, axes, expected):
    found = sampled(spread(axes))
    same(found, alone)
    assert sent(found[2]) == expected


@pytest.mark.parametrize(
    ("heads", "kv_heads", "tensor"),
    # Held: each of three heads twice; one head twice; half heads, since four cannot be eight.
    [(6, 3, 2), (2, 1, 2), (4, 2, 8)],
)
def test_heads_that_do_not_divide_sample_the_same(heads, kv_heads, tensor):
    config = dataclasses.replace(CONFIG, num_heads=heads, num_kv_heads=kv_heads, vocab_size=64)
    expected = sampled(Decoder(config, rngs=nnx.Rngs(0)))
    same(sampled(spread({"tensor": tensor}, config=config)), expected)


def test_a_vocabulary_on_two_devices_sends_no_logits(alone, sent):
    """A draw needs one block of 128 tokens a slot, and what each device found of its blocks. The
    logits would be 2,048 a slot.
    """
    found = sampled(spread({"tensor": 2}, (*HEADS, "vocab")))
    same(found, alone)
    needed = ADDED + BLOCK * SLOTS
    assert needed < sum(sent(found[2]).values()) < needed + 50 * SLOTS
