"""Rotary embeddings against numbers worked out by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zootomy.models import RopeConfig, make_model
from zootomy.models.rope import rope_frequencies, rope_tables, rope_tables_once, rotate


def frequencies(head_dim, **fields):
    return rope_frequencies(RopeConfig(**fields), head_dim)


def test_default_and_linear():
    # theta 100, head_dim 4: exponents 0 and 1/2, so 1 and 1/10; linear by 4: 0.25 and 0.025.
    np.testing.assert_allclose(frequencies(4, theta=100.0)[0], [1.0, 0.1], rtol=1e-6)
    linear, factor = frequencies(4, theta=100.0, kind="linear", factor=4.0)
    np.testing.assert_allclose(linear, [0.25, 0.025], rtol=1e-6)
    assert factor == 1.0


def test_llama3_keeps_interpolates_and_scales():
    # Frequencies 1, 10^-1/2, 10^-1, 10^-3/2, wavelengths 6.28, 19.87, 62.8, 198.7. Context 100:
    # below 100 / 4 = 25 kept, above 100 / 1 = 100 divided by 8, between (62.8) smoothed with
    # s = (100 / 62.83 - 1) / 3 = 0.197183: 0.1 * ((1 - s) / 8 + s) = 0.0297535.
    scaled, factor = frequencies(
        8,
        theta=100.0,
        kind="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_positions=100,
    )
    np.testing.assert_allclose(scaled, [1.0, 0.316228, 0.0297535, 0.0316228 / 8], rtol=1e-5)
    assert factor == 1.0


def test_yarn_ramp():
    # d(r) = 8 ln(100 / (2 pi r)) / (2 ln 100): d(32) = -0.607 -> 0, d(1) = 2.404 -> ceil 3.
    # Ramp 0, 1/3, 2/3, 1; frequency * (1 - ramp + ramp / 8).
    scaled, factor = frequencies(
        8, theta=100.0, kind="yarn", factor=8.0, original_max_positions=100
    )
    plain = np.array([1.0, 0.316228, 0.1, 0.0316228])
    np.testing.assert_allclose(scaled, plain * [1.0, 17 / 24, 10 / 24, 1 / 8], rtol=1e-5)
    assert factor == pytest.approx(0.1 * math.log(8) + 1)  # 1.2079


def test_yarn_without_truncation_stops_at_the_exact_dimension():
    # The upper end is 2.40411 instead of 3: ramp 0, 0.415954, 0.831908, 1.
    scaled, _ = frequencies(
        8, theta=100.0, kind="yarn", factor=8.0, original_max_positions=100, truncate=False
    )
    high = 8 * math.log(100 / (2 * math.pi)) / (2 * math.log(100))
    ramp = np.minimum(np.arange(4) / high, 1)
    plain = np.array([1.0, 0.316228, 0.1, 0.0316228])
    np.testing.assert_allclose(scaled, plain * (1 - ramp + ramp / 8), rtol=1e-5)


@pytest.mark.parametrize(
    "fields, wanted",
    [
        ({}, 0.1 * math.log(4) + 1),
        ({"attention_factor": 0.7}, 0.7),
        ({"mscale": 1.0}, 0.1 * math.log(4) + 1),  # alone it is not read
        (
            {"mscale": 2.0, "mscale_all_dim": 0.5},
            (0.2 * math.log(4) + 1) / (0.05 * math.log(4) + 1),
        ),
        ({"mscale": 1.0, "mscale_all_dim": 0.0}, 0.1 * math.log(4) + 1),
    ],
)
def test_yarn_attention_factor(fields, wanted):
    _, factor = frequencies(8, kind="yarn", factor=4.0, original_max_positions=64, **fields)
    assert factor == pytest.approx(wanted, rel=1e-12)


def test_rotation_turns_halves_not_neighbours():
    # Position 2, theta 100, head_dim 4: angles 2 and 0.2; pairs are (0, 2) and (1, 3).
    cos, sin = rope_tables(jnp.array([[2]]), RopeConfig(theta=100.0), 4)
    out = rotate(jnp.array([[[[1.0, 0.0, 0.0, 3.0]]]]), cos, sin)[0, 0, 0]
    wanted = [math.cos(2), -3 * math.sin(0.2), math.sin(2), 3 * math.cos(0.2)]
    np.testing.assert_allclose(out, wanted, atol=1e-6)


def test_far_positions_stay_exact():
    positions = jnp.array([[131071]])
    cos, _ = rope_tables(positions, RopeConfig(), 8)
    angles = np.float32(131071) * rope_frequencies(RopeConfig(), 8)[0]
    np.testing.assert_allclose(cos[0, 0, 0], np.cos(angles.astype(np.float64)), atol=1e-6)


@pytest.mark.parametrize("positions", [[[0, 1, 5], [2, 0, 9]], [[0, 0, 0], [0, 0, 0]]])
def test_tables_that_are_computed_once_are_the_same(positions):
    rope, positions = (
        RopeConfig(kind="yarn", factor=4.0, original_max_positions=32),
        jnp.asarray(positions),
    )
    for once, plain in zip(
        rope_tables_once(positions, rope, 8), rope_tables(positions, rope, 8), strict=True
    ):
        np.testing.assert_array_equal(once, plain)


def test_layers_do_not_compute_cosines_again():
    """Queries and keys of two layers read them: fused into each, they would stand there 4 times."""
    model = make_model("tiny", vocab_size=17)
    rows = jnp.zeros((2, 9), jnp.int32)
    compiled = jax.jit(lambda t, p: model(t, p)).lower(rows, rows).compile()
    assert compiled.as_text().count(" cosine(") == 1
