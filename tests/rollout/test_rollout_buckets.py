"""Shape buckets."""

import doctest

from zootomy.rollout import buckets, prefill
from zootomy.rollout.buckets import fit, ladder, slot_ladder
from zootomy.rollout.prefill import LEAST_PREFILL, Prefill


def test_examples_of_the_docstrings():
    for module in (buckets, prefill):
        assert doctest.testmod(module).failed == 0


def test_every_size_fits_and_the_last_step_is_the_limit():
    for last in range(1, 200):
        for steps in (ladder(16, last), slot_ladder(last)):
            assert steps[-1] == last
            assert list(steps) == sorted(set(steps))
            assert all(fit(size, steps) >= size for size in range(1, last + 1))


def test_at_most_a_third_of_the_slots_is_idle():
    steps = slot_ladder(96)
    assert all(fit(size, steps) * 2 <= size * 3 for size in range(1, 97))


def test_long_prompts_go_through_in_pieces():
    """Of 2^20 pairs: 2^20 / 512 = 2,048 tokens of width 512, so 4 prompts; of 3,000, 349."""
    prefill = Prefill(tokens=8192, pairs=2**20)
    assert prefill.piece(16, 100) == (16, 100)  # 160,000 pairs
    assert prefill.piece(16, 512) == (4, 512)
    assert prefill.piece(2, 512) == (2, 512)
    assert prefill.piece(2, 3000) == (1, 256)
    assert prefill.piece(2, 100_000) == (1, LEAST_PREFILL)
    assert Prefill(tokens=100, pairs=2**20).piece(1, 100_000) == (1, 64)
    assert Prefill(tokens=8192).piece(16, 512) == (16, 512)
    assert Prefill(tokens=400).piece(1, 512) == (1, 256)
