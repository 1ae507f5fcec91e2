"""What every engine refuses before it samples, and what real engines share besides."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..registry import ZootomyError
from .config import RolloutConfig, fit_prompts
from .types import Request, SamplingParams, StopReason, whole_number

CLOSED = "the engine is closed; make a new one"
OWN_NOISE = 0x5EED  # parts the noise of calls without a seed from that of calls with one
SEED = "an integer >= 0, or None"
STOP_REASONS: dict[str, StopReason] = {"stop": "stop", "length": "length", "abort": "abort"}
"""Ours, by the word that real engines have for them."""


def check_positions(config: RolloutConfig, max_positions: int) -> int:
    """The longest row, prompt and completion, or the error that it exceeds the model's."""
    total = config.max_prompt_tokens + config.max_new_tokens
    if total > max_positions:
        raise ZootomyError(
            f"max_prompt_tokens {config.max_prompt_tokens} + max_new_tokens "
            f"{config.max_new_tokens} = {total} exceeds the model's "
            f"{max_positions} positions; lower one of them"
        )
    return total


def check_requests(
    requests: Sequence[Request],
    sampling: SamplingParams,
    config: RolloutConfig,
    vocabulary: int,
) -> list[tuple[int, ...]]:
    """The prompts as they are read; refuse what the engine cannot do.

    Args:
        requests: what is asked for.
        sampling: how.
        config: the engine's limits.
        vocabulary: V, number of token ids.

    Raises:
        ZootomyError: a wrong prompt or stop id, or a longer completion than the engine holds.
    """
    if sampling.max_new_tokens > config.max_new_tokens:
        raise ZootomyError(
            f"max_new_tokens is {sampling.max_new_tokens}; the engine was made for "
            f"{config.max_new_tokens}. Raise rollout.max_new_tokens, or ask for less"
        )
    for stop in sampling.stop_ids:
        if stop >= vocabulary:
            raise ZootomyError(f"stop id {stop} is outside the vocabulary of {vocabulary} tokens")
    for i, request in enumerate(requests):
        ids = np.asarray(request.prompt)
        if ids.size and not np.issubdtype(ids.dtype, np.integer):
            raise ZootomyError(f"prompt {i} holds {ids.dtype}; expected integer token ids")
        wrong = ids[(ids < 0) | (ids >= vocabulary)] if ids.size else ids
        if wrong.size:
            raise ZootomyError(
                f"prompt {i} holds token {wrong[0]}, outside the vocabulary of {vocabulary} tokens"
            )
    return fit_prompts([request.prompt for request in requests], config)


def completion_seed(seed: int | Sequence[int], request: int, completion: int) -> int:
    """A seed of 62 bits for one completion, from the call's seed and the two indices alone."""
    parts = [seed] if not isinstance(seed, Sequence) else seed
    for part in parts:
        whole_number("seed", part, 0, SEED)
    words = np.random.SeedSequence([*parts, request, completion]).generate_state(1, np.uint64)
    return int(words[0]) >> 2
