"""Random numbers by address: every use has its own seed, and none depends on what ran before it.

So nothing of the generators has to be saved, a resumed run draws what the uninterrupted one would
have drawn, and evaluating more often changes no training step.
"""

from __future__ import annotations

import zlib

import numpy as np

from ..registry import ZootomyError


def derive_seed(seed: int, purpose: str, *numbers: int) -> int:
    """A seed in `[0, 2**31)` for one purpose, from the run's seed and some counters.

    Args:
        seed: the run's seed.
        purpose: what the random numbers are for, e.g. `"rollout"`.
        *numbers: counters that tell this use from the others, e.g. step and attempt.

    Returns:
        The seed.

    Raises:
        ZootomyError: if the run's seed is negative.
    """
    if seed < 0:
        raise ZootomyError(f"seed must be 0 or more, got {seed}.")
    # Their number too: NumPy takes trailing zeros for nothing.
    entropy = [seed, zlib.crc32(purpose.encode()), len(numbers), *numbers]
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint32)[0] >> 1)
