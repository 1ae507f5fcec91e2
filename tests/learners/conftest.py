"""Rollouts made of plain numbers; helper modules beside the tests can be imported by name."""

import functools
import sys
from pathlib import Path

import numpy as np
import pytest
from zootomy.learners import Rollouts
from zootomy.rollout import Completion
from zootomy.tasks import CharacterTokenizer, Example, RewardFunction, Task

sys.path.insert(0, str(Path(__file__).parent))

import tiny_run


def make_rollouts(rewards, lengths, width=None, *, valid=None, mask=None, **arrays) -> Rollouts:
    """Rollouts of `[P, G]` rewards whose row n has `lengths[n]` actions from the start on."""
    rewards = np.asarray(rewards, np.float32)
    lengths = np.asarray(lengths)
    if mask is None:
        width = int(lengths.max()) if width is None else width
        mask = np.arange(width) < lengths[:, None]
    filled = {
        name: np.asarray(value) if np.ndim(value) else np.full(np.shape(mask), value, np.float32)
        for name, value in arrays.items()
    }
    return Rollouts(
        rewards=rewards,
        valid=np.ones(rewards.shape, bool) if valid is None else np.asarray(valid, bool),
        mask=np.asarray(mask, np.float32),
        **{
            name: value.astype(np.float32) if value.dtype == np.float64 else value
            for name, value in filled.items()
        },
    )


@pytest.fixture(scope="session")
def rollouts_of():
    return make_rollouts


ALPHABET = "0123456789"


class RandomEngine:
    """Tokens from NumPy by seed and request, without a model: what it samples is no one's policy.

    Args:
        vocab_size: tokens are drawn below it.
        lengths: completion c of a call's request r has `lengths[(r + c) % len(lengths)]` tokens.
        stop_id: the last token of a completion that is shorter than the limit.
    """

    def __init__(self, vocab_size=12, lengths=(1, 3, 2), stop_id=1):
        self.vocab_size, self.lengths, self.stop_id = vocab_size, lengths, stop_id
        self.version = 0
        self.calls = []

    def generate(self, requests, sampling, seed=None):
        self.calls.append((list(requests), sampling, seed))
        return [
            [self._completion(r, c, sampling, seed) for c in range(request.n)]
            for r, request in enumerate(requests)
        ]

    def _completion(self, r, c, sampling, seed):
        length = min(self.lengths[(r + c) % len(self.lengths)], sampling.max_new_tokens)
        rng = np.random.default_rng([0 if seed is None else seed, r, c])
        tokens = rng.integers(2, self.vocab_size, length).astype(np.int32)
        stopped = length < sampling.max_new_tokens
        if stopped:
            tokens[-1] = self.stop_id
        logp = np.full(length, -np.log(self.vocab_size), np.float32)
        return Completion(tokens, logp, "stop" if stopped else "length", self.version)

    def update_weights(self, weights, version):
        self.version = version

    def close(self):
        pass


def make_digits(function, size=6, **options) -> Task:
    """A task whose prompt i is the digit i; `function` is its only reward."""
    examples = [Example(str(i), {"index": i}) for i in range(size)]
    options = {"eval": examples, **options}
    return Task(
        name="digits",
        train=examples,
        rewards=(RewardFunction("score", function),),
        tokenizer=CharacterTokenizer(ALPHABET),
        **options,
    )


@pytest.fixture(scope="session")
def random_engine():
    return RandomEngine


@pytest.fixture(scope="session")
def digits():
    return make_digits


@pytest.fixture(scope="session")
def tiny_learner():
    """Learners on one small shape of batch, whose completions are random tokens."""
    return functools.partial(tiny_run.make_learner, make_digits, RandomEngine)
