"""Rollouts made of plain numbers."""

import numpy as np
import pytest
from zootomy.learners import Rollouts


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
