"""The engine's drift as numbers, and the correction that is recommended for it."""

import dataclasses
import math

import numpy as np
import pytest
from zootomy import RolloutConfig, algorithm
from zootomy.learners.mismatch import mismatch_metrics, recommend_correction
from zootomy.rollout.sglang_jax import SglangJaxConfig


def test_hand_computed():
    # ratios 1, 2 and 1/2 on three actions; the fourth entry is none, whatever it holds
    old = [[-1.0, -1.0], [-1.0, np.nan]]
    rollout = [[-1.0, -1.0 - math.log(2)], [-1.0 + math.log(2), 0.0]]
    found = mismatch_metrics(old, rollout, [[1, 1], [1, 0]], [[1.0, 1.2], [0.0, 9.0]])
    assert found == pytest.approx({
        "mismatch/abs_mean": 2 * math.log(2) / 3,
        "mismatch/abs_max": math.log(2),
        "mismatch/ratio_min": 0.5,
        "mismatch/ratio_max": 2.0,
        "mismatch/effective_sample_size": 3.5**2 / (3 * 5.25),  # (Σρ)² / (n Σρ²)
        "mismatch/rejected": 1 / 3,
        "mismatch/corrected": 1 / 3,
    })  # fmt: skip


def test_without_a_correction_and_without_actions():
    assert "mismatch/rejected" not in mismatch_metrics([[-1.0]], [[-1.0]], [[1]])
    assert mismatch_metrics([[-1.0]], [[-1.0]], [[0]]) == {}


def test_an_engine_that_drifts_gets_a_correction_and_a_note():
    grpo = algorithm("grpo")
    chosen, note = recommend_correction(grpo, RolloutConfig(engine="vllm"))
    assert chosen == grpo.override({"correction": "tis"})
    assert note == (
        "rollout engine 'vllm' does not compute as the trainer does: correction 'tis' is switched "
        "on (--rollout.recommended_correction False leaves it off)"
    )


@pytest.mark.parametrize("rollout", [
    RolloutConfig(), RolloutConfig(engine="vllm", recommended_correction=False),
])  # fmt: skip
def test_exact_engines_and_users_who_say_so_get_none(rollout):
    assert recommend_correction(algorithm("grpo"), rollout) == (algorithm("grpo"), "")


def test_the_users_own_correction_stays():
    own = algorithm("grpo", correction="icepop")
    assert recommend_correction(own, RolloutConfig(engine="vllm")) == (own, "")


def test_an_engine_without_log_probabilities_is_not_corrected():
    silent = RolloutConfig(engine="sglang_jax", sglang_jax=SglangJaxConfig(logprobs=False))
    chosen, note = recommend_correction(algorithm("grpo"), silent)
    assert chosen == algorithm("grpo")
    assert "reports no log-probabilities" in note
    assert not silent.reports_logp
    assert dataclasses.replace(silent, sglang_jax=SglangJaxConfig()).reports_logp
