"""Shape buckets."""

import doctest

from zootomy.rollout import buckets
from zootomy.rollout.buckets import LEAST_PREFILL, Prefill, fit, ladder, slot_ladder


def test_examples_of_the_docstrings():
    assert doctest.testmod(buckets).failed == 0


def test_every_size_fits_and_the_last_step_is_the_limit():
    for last in range(1, 200):
        for steps in (ladder(16, last), slot_ladder(last)):
            assert steps[-1] == last
            assert list(steps) == sorted(set(steps))
            assert all(fit(size, steps) >= size for size in range(1, last + 1))


def test_at_most_a_third_of_the_slots_is_idle():
    steps = slot_ladder(96)
    assert all(fit(size, steps) * 2 <= size * 3 for size in range(1, 97))


def test_long_prompts_are_read_in_passes_of_fewer_tokens():
    """2^20 pairs: 2^20 / 512 tokens of width 512, but never more than asked nor fewer than pays."""
    prefill = Prefill(tokens=4096, pairs=2**20)
    assert [prefill.budget(width) for width in (100, 512, 100_000)] == [4096, 2048, LEAST_PREFILL]
    assert Prefill(tokens=100, pairs=2**20).budget(100_000) == 100
    assert Prefill(tokens=4096).budget(100_000) == 4096
