"""What is not computed alike in several processes: rewards, asked once and told to all."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import numpy as np

from ..models import from_first, several
from ..tasks import Scores

_ARRAYS = ("rewards", "valid", "components")


def agreed_scores(make: Callable[[], Scores]) -> Scores:
    """The scores that the first process makes; in the others `make` is not called.

    Raises:
        ZootomyError: in every process, where `make` raised it in the first.
    """
    return _unpack(from_first(lambda: _pack(make()))) if several() else make()


def _pack(scores: Scores) -> bytes:
    rest = {"names": scores.names, "failures": scores.failures, "last_error": scores.last_error}
    arrays = {name: vars(scores)[name] for name in _ARRAYS}
    if scores.token_rewards is not None:
        arrays["lengths"] = np.array([len(one) for one in scores.token_rewards], np.int64)
        arrays["token_rewards"] = np.concatenate([*scores.token_rewards, np.zeros(0, np.float32)])
    file = io.BytesIO()
    np.savez(file, rest=np.frombuffer(json.dumps(rest).encode(), np.uint8), **arrays)
    return file.getvalue()


def _unpack(data: bytes) -> Scores:
    with np.load(io.BytesIO(data), allow_pickle=False) as stored:
        arrays = dict(stored)
    rest = json.loads(arrays["rest"].tobytes())
    token_rewards = None
    if "lengths" in arrays:
        ends = np.cumsum(arrays["lengths"])[:-1]
        parts = np.split(arrays["token_rewards"].astype(np.float32), ends)
        token_rewards = tuple(parts[: len(arrays["lengths"])])
    return Scores(
        rewards=arrays["rewards"],
        valid=arrays["valid"],
        components=arrays["components"],
        names=tuple(rest["names"]),
        failures=dict(rest["failures"]),
        last_error=rest["last_error"],
        token_rewards=token_rewards,
    )
