"""Sampling: hand-computed truncations and log-probabilities, the draw's edges, the noise."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zootomy.rollout import SamplingParams
from zootomy.rollout.noise import fold_in, key_of, noise_ahead, row_keys, row_noise
from zootomy.rollout.sampling import (
    BLOCK,
    STOP_SLOTS,
    draw,
    in_blocks,
    sample,
    sampling_arrays,
)

LOW, HIGH = 2.0**-24, 1 - 2.0**-24  # the ends of what `row_noise` gives
_sample = jax.jit(sample, static_argnames="truncated")


def params(**settings):
    return SamplingParams(max_new_tokens=1, **settings)


def outcomes(logits, **settings):
    """Every token that evenly spread noise draws, with its share and logp."""
    sampling = params(**settings)
    uniforms = np.linspace(0.001, 0.999, 999, dtype=np.float32)
    columns = jnp.tile(jnp.asarray(logits, jnp.float32)[:, None], len(uniforms))
    noise = jnp.stack([jnp.full(len(uniforms), 0.5), uniforms], axis=1)
    tokens, logp = _sample(columns, noise, sampling_arrays(sampling), truncated=sampling.truncated)
    tokens, logp = np.asarray(tokens), np.asarray(logp)
    found = {}
    for token in np.unique(tokens):
        values = logp[tokens == token]
        assert np.ptp(values) < 1e-6
        found[int(token)] = (np.mean(tokens == token), values[0])
    return found


def check(found, probabilities):
    """The tokens, their shares and their logps are those of the distribution."""
    assert set(found) == set(probabilities)
    for token, (share, logp) in found.items():
        assert share == pytest.approx(probabilities[token], abs=0.003)
        assert logp == pytest.approx(np.log(probabilities[token]), abs=1e-5)


def test_temperature_divides_the_logits():
    # log_softmax([2, 0] / 0.5)[0] = -log(1 + e^-4) = -0.01815;
    # without the temperature -0.12693, the log-probability divided -0.25386.
    found = outcomes([2.0, 0.0], temperature=0.5)
    assert found[0][1] == pytest.approx(-0.01815, abs=1e-5)
    p = 1 / (1 + np.exp(-4))
    check(found, {0: p, 1: 1 - p})


def test_a_very_low_temperature_is_not_clamped():
    # gap 0.005 at T = 0.005: odds e; an engine that clamps at 0.01 has odds e^0.5.
    p = np.e / (1 + np.e)
    check(outcomes([0.005, 0.0], temperature=0.005), {0: p, 1: 1 - p})


def test_greedy_takes_the_largest_logit_and_reports_its_logp_at_temperature_one():
    # log_softmax([0, 2, 1])[1] = -log(1 + e^-1 + e^-2) = -0.40761
    found = outcomes([0.0, 2.0, 1.0], temperature=0.0)
    assert found == {1: (1.0, pytest.approx(-0.40761, abs=1e-5))}


def test_top_p_keeps_the_smallest_set_and_renormalises():
    # [.6, .3, .1]: .6 < .85 <= .9, so two are kept and logp(0) = log(.6/.9), not log(.6).
    logits = np.log([0.1, 0.6, 0.3])
    check(outcomes(logits, top_p=0.85), {1: 2 / 3, 2: 1 / 3})
    check(outcomes(logits, top_p=0.55), {1: 1.0})
    check(outcomes(logits, top_p=0.95), {0: 0.1, 1: 0.6, 2: 0.3})


def test_top_p_always_keeps_the_most_likely_token():
    check(outcomes(np.log([0.3, 0.7]), top_p=1e-6), {1: 1.0})


def test_top_k():
    logits = np.log([0.1, 0.5, 0.4])
    check(outcomes(logits, top_k=1), {1: 1.0})
    check(outcomes(logits, top_k=2), {1: 5 / 9, 2: 4 / 9})
    check(outcomes(logits, top_k=3), {0: 0.1, 1: 0.5, 2: 0.4})
    check(outcomes(logits, top_k=50), {0: 0.1, 1: 0.5, 2: 0.4})


def test_top_k_keeps_ties_with_the_last_kept():
    # the second and third are equal, so k = 2 keeps three
    check(outcomes(np.log([0.4, 0.25, 0.25, 0.1]), top_k=2), {0: 4 / 9, 1: 2.5 / 9, 2: 2.5 / 9})


def test_min_p_is_relative_to_the_most_likely():
    # threshold .5 * .5 = .25 keeps .5 and .3
    check(outcomes(np.log([0.2, 0.5, 0.3]), min_p=0.5), {1: 5 / 8, 2: 3 / 8})


def test_temperature_comes_before_truncation():
    # At T = 0.5 [.6, .4] becomes [.36, .16] / .52 = [.692, .308]: top_p = .65 keeps one token.
    # Truncated first, .6 < .65 would keep both.
    check(outcomes(np.log([0.6, 0.4]), temperature=0.5, top_p=0.65), {0: 1.0})


def test_top_p_is_of_what_top_k_left():
    # top_k = 2 leaves [.571, .429], of which .571 >= .5 is one token; of all, .4 < .5 is two.
    check(outcomes(np.log([0.4, 0.3, 0.2, 0.1]), top_k=2, top_p=0.5), {0: 1.0})


def test_top_p_comes_before_min_p():
    # top_p = .5 of all: .4 < .5 keeps two; min_p = .7 keeps >= .28, the same two.
    # min-p first would leave [.571, .429], of which top_p keeps one.
    found = outcomes(np.log([0.4, 0.3, 0.2, 0.1]), top_p=0.5, min_p=0.7)
    check(found, {0: 4 / 7, 1: 3 / 7})


@functools.cache
def reference_case():
    rng = np.random.default_rng(3)
    return rng.normal(size=(40, 301)).astype(np.float32) * 3


@pytest.mark.parametrize(
    "settings",
    [
        {"top_k": 7},
        {"top_p": 0.8},
        {"min_p": 0.03},
        {"temperature": 1.7, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
    ],
)
def test_agrees_with_a_sort(settings):
    logits = reference_case()
    sampling = params(**settings)
    noise = np.random.default_rng(1).uniform(LOW, HIGH, (len(logits), 2)).astype(np.float32)
    tokens, logps = _sample(
        logits.T, noise, sampling_arrays(sampling), truncated=sampling.truncated
    )
    for row, token, logp in zip(logits, np.asarray(tokens), np.asarray(logps), strict=True):
        p = np.exp((row - row.max()).astype(np.float64) / sampling.temperature)
        p /= p.sum()
        order = np.argsort(-p)
        if sampling.top_k is not None:
            p[order[sampling.top_k :]] = 0
            p /= p.sum()
        before = np.cumsum(p[order]) - p[order]
        p[order[before >= sampling.top_p]] = 0
        p[p < sampling.min_p * p.max()] = 0
        p /= p.sum()
        assert p[token] > 0
        assert logp == pytest.approx(np.log(p[token]), abs=1e-4)


def drawn(weight, noise):
    """`draw` from the weights of a whole vocabulary, `[V, S]`."""
    blocks = in_blocks(jnp.asarray(weight), 0.0)

    def inside(block):
        return jnp.take_along_axis(blocks, block[None, None], axis=0)[0]

    return draw(blocks.sum(axis=1), inside, jnp.asarray(noise))


def test_draw_inverts_the_cumulative_sum():
    # cumulative [1, 1, 3, 4] / 4: up to .25 token 0, up to .75 token 2, then 3; never token 1
    uniform = np.float32([LOW, 0.2, 0.249, 0.251, 0.5, 0.749, 0.751, HIGH])
    weight = jnp.tile(jnp.float32([[1], [0], [2], [1]]), len(uniform))
    noise = jnp.stack([jnp.full(len(uniform), 0.5), uniform], axis=1)
    assert drawn(weight, noise).tolist() == [0, 0, 0, 2, 2, 2, 3, 3]


@pytest.mark.parametrize("ends", [(LOW, LOW), (LOW, HIGH), (HIGH, LOW), (HIGH, HIGH)])
@pytest.mark.parametrize("where", [(0, 299), (127, 128), (255, 256), (1, 2)])
def test_draw_never_takes_a_weight_of_zero(ends, where):
    weight = np.zeros((300, 1), np.float32)
    weight[list(where), 0] = [1e-30, 3e-31]
    assert int(drawn(weight, np.float32([ends]))[0]) in where


def test_draw_of_a_large_vocabulary_has_the_right_shares():
    # Tokens 5, 200 and 700 of 1000 weigh 1, 2 and 5: 3 blocks, the others are empty.
    rows = 4000
    weight = np.zeros((1000, rows), np.float32)
    weight[[5, 200, 700]] = [[1], [2], [5]]
    noise = jnp.asarray(np.random.default_rng(0).uniform(LOW, HIGH, (rows, 2)), jnp.float32)
    tokens, counts = np.unique(np.asarray(drawn(weight, noise)), return_counts=True)
    assert tokens.tolist() == [5, 200, 700]
    # three standard deviations of a share of 5/8 in 4000 draws: .023
    np.testing.assert_allclose(counts / rows, [1 / 8, 2 / 8, 5 / 8], atol=0.023)


@functools.cache
def wide_case():
    """Columns of a vocabulary of 3 blocks, the last with 45 tokens, and the exact p of each."""
    logits = np.random.default_rng(8).normal(size=(301, 5)).astype(np.float32) * 2
    p = np.exp(logits.astype(np.float64) / 0.7)
    return logits, p / p.sum(axis=0)


def expected(p, noise):
    """The two draws in float64: a block by its mass, then a token in it, and its probability."""
    blocks = np.pad(p, (0, -len(p) % BLOCK)).reshape(-1, BLOCK)
    mass = blocks.sum(axis=1)
    block = np.searchsorted(np.cumsum(mass), noise[0])
    inside = np.searchsorted(np.cumsum(blocks[block]) / mass[block], noise[1])
    return block * BLOCK + inside, p[block * BLOCK + inside]


@pytest.mark.parametrize("min_p", [0.0, 0.01])
def test_a_vocabulary_of_several_blocks_is_drawn_by_two_inverses(min_p):
    logits, p = wide_case()
    p = np.where(p >= min_p * p.max(axis=0), p, 0)
    p /= p.sum(axis=0)
    arrays = sampling_arrays(params(temperature=0.7, min_p=min_p))
    taken = set()
    for seed in range(40):
        noise = np.random.default_rng(seed).uniform(LOW, HIGH, (5, 2)).astype(np.float32)
        tokens, logp = _sample(logits, noise, arrays, truncated=False)
        for column in range(5):
            token, share = expected(p[:, column], noise[column])
            assert int(tokens[column]) == token
            assert float(logp[column]) == pytest.approx(np.log(share), abs=1e-5)
            taken.add(token // BLOCK)
    assert taken == {0, 1, 2}


@pytest.mark.parametrize("ties", [(200, 131, 299), (256, 300), (127, 128), (0, 300)])
def test_greedy_takes_the_first_of_tied_tokens_of_all_blocks(ties):
    logits = wide_case()[0].copy()
    logits[list(ties), 3] = 40.0
    noise = jnp.full((5, 2), HIGH)
    tokens, logp = _sample(logits, noise, sampling_arrays(params(temperature=0)), truncated=False)
    assert tokens.tolist() == np.argmax(logits, axis=0).tolist()
    assert int(tokens[3]) == min(ties)
    assert float(logp[3]) == pytest.approx(-np.log(len(ties)), abs=1e-5)


@pytest.mark.parametrize("uniform", [LOW, HIGH])
def test_what_fills_the_last_block_up_is_never_drawn(uniform):
    # 129 tokens: the second block holds one, and 127 that are none.
    logits = np.full((129, 2), -1e4, np.float32)
    logits[[128, 5], [0, 1]] = 0
    arrays = sampling_arrays(params())
    tokens, logp = _sample(logits, np.full((2, 2), uniform, np.float32), arrays, truncated=False)
    assert tokens.tolist() == [128, 5]
    np.testing.assert_allclose(logp, 0, atol=1e-6)


def test_logits_that_are_not_numbers_give_a_token_of_the_vocabulary_and_no_logp():
    for temperature in (0.0, 1.0):
        arrays = sampling_arrays(params(temperature=temperature))
        logits = np.full((130, 1), np.nan, np.float32)
        token, logp = _sample(logits, np.full((1, 2), HIGH, np.float32), arrays, truncated=False)
        assert 0 <= int(token[0]) < 130
        assert np.isnan(logp[0])


def test_a_logit_of_minus_infinity_is_never_drawn():
    check(outcomes([-np.inf, 0.0, -np.inf, 0.0]), {1: 0.5, 3: 0.5})


def test_noise_depends_on_seed_request_completion_and_position_alone():
    owner = jnp.int32([[0, 0], [0, 1], [1, 0], [4, 2]])
    position = jnp.int32([3, 3, 3, 9])

    def noise(seed, rows):
        return np.asarray(row_noise(row_keys(key_of([seed]), owner[rows]), position[rows]))

    everything = noise(5, jnp.arange(4))
    np.testing.assert_array_equal(noise(5, jnp.int32([3, 1])), everything[[3, 1]])
    assert len(np.unique(np.concatenate([everything, noise(6, jnp.arange(4))]))) == 16
    keys = row_keys(key_of([5]), owner)
    later = row_noise(keys, position + 1)
    assert not np.intersect1d(np.asarray(later), everything).size
    starts = jnp.int32([2, 1, 0, 5])
    ahead = noise_ahead(keys, starts, 4)  # place i is position start + i + 1
    assert ahead.shape == (4, 4, 2)
    np.testing.assert_array_equal(ahead[jnp.arange(4), position - starts - 1], everything)


@pytest.mark.parametrize("data", [0, 1, 77, -1, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("seed", [0, 5, 2**32 - 1])
def test_a_number_folded_into_a_key_is_that_of_jax(seed, data):
    key, found = jax.random.key(seed), key_of(np.uint32([seed]))
    np.testing.assert_array_equal(found, jax.random.key_data(key))
    again = jax.random.fold_in(jax.random.fold_in(key, jnp.int32(data)), 3)
    found = fold_in(fold_in(found, jnp.int32(data)), jnp.int32(3))
    np.testing.assert_array_equal(found, jax.random.key_data(again))


def test_noise_is_uniform_and_never_reaches_the_ends():
    rows = 5000
    owner = jnp.stack([jnp.arange(rows) // 8, jnp.arange(rows) % 8], axis=1)
    noise = np.asarray(row_noise(row_keys(key_of([0]), owner), jnp.full(rows, 7)))
    assert noise.min() >= LOW
    assert noise.max() <= HIGH
    # a tenth has a share of .1 +- .013 (three standard deviations)
    for column in noise.T:
        share = np.histogram(column, bins=10, range=(0, 1))[0] / rows
        np.testing.assert_allclose(share, 0.1, atol=0.015)
    assert abs(np.corrcoef(noise.T)[0, 1]) < 0.05


def test_stop_ids_are_padded_to_a_fixed_number():
    assert sampling_arrays(params(stop_ids=(7,))).stop_ids.tolist() == [7] + [-1] * (STOP_SLOTS - 1)
    assert len(sampling_arrays(params()).stop_ids) == STOP_SLOTS
    assert len(sampling_arrays(params(stop_ids=tuple(range(9)))).stop_ids) == 2 * STOP_SLOTS
