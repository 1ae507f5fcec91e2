"""Wrong settings end early, with a sentence; defaults stand in one place."""

import dataclasses
import math

import numpy as np
import pytest
from zootomy import ZootomyError
from zootomy.rollout import Completion, Request, RolloutConfig, SamplingParams, fit_prompts
from zootomy.rollout.sglang_jax import SglangJaxConfig
from zootomy.rollout.vllm import VllmConfig


def message(make, *args, **kwargs):
    with pytest.raises(ZootomyError) as error:
        make(*args, **kwargs)
    return str(error.value)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"temperature": -0.5}, "temperature is -0.5; expected a number >= 0 (0 is greedy)"),
        ({"temperature": math.nan}, "temperature is nan; expected a number >= 0 (0 is greedy)"),
        ({"temperature": "1"}, "temperature is '1'; expected a number >= 0 (0 is greedy)"),
        (
            {"temperature": 1e-9},
            "temperature is 1e-09, too small for float32 logits: use 0 for greedy, or at least "
            "1e-06",
        ),
        ({"top_p": 0.0}, "top_p is 0.0; expected a number in (0, 1], 1 keeps all"),
        ({"top_p": 1.1}, "top_p is 1.1; expected a number in (0, 1], 1 keeps all"),
        ({"min_p": -0.1}, "min_p is -0.1; expected a number in [0, 1], 0 keeps all"),
        ({"min_p": 2}, "min_p is 2; expected a number in [0, 1], 0 keeps all"),
        ({"top_k": 0}, "top_k is 0; expected an integer >= 1, or None to keep all"),
        ({"top_k": 2.0}, "top_k is 2.0; expected an integer >= 1, or None to keep all"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0; expected an integer >= 1"),
        ({"max_new_tokens": True}, "max_new_tokens is True; expected an integer >= 1"),
        (
            {"temperature": 0, "top_p": 0.9},
            "temperature is 0 (greedy), so top_p, top_k and min_p have no effect, but got "
            "top_p=0.9, top_k=None, min_p=0.0; leave them at 1.0, None and 0.0",
        ),
    ],
)
def test_wrong_sampling_is_refused_alike_by_parameters_and_config(settings, text):
    assert message(SamplingParams, **{"max_new_tokens": 4, **settings}) == text
    assert message(RolloutConfig, **settings) == text


@pytest.mark.parametrize(
    ("stops", "text"),
    [
        ((3, -1), "stop_ids[1] is -1; expected a token id >= 0"),
        ("ab", "stop_ids is 'ab'; expected a tuple of token ids"),
        (7, "stop_ids is 7; expected a tuple of token ids"),
    ],
)
def test_wrong_stop_ids(stops, text):
    assert message(SamplingParams, max_new_tokens=4, stop_ids=stops) == text


@pytest.mark.parametrize("name", ["min_tokens", "ignore_eos", "repetition_penalty"])
def test_sampling_settings_that_are_not_enforced_are_not_accepted(name):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        SamplingParams(max_new_tokens=4, **{name: 1})


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"max_prompt_tokens": 0}, "max_prompt_tokens is 0; expected an integer >= 1"),
        ({"max_slots": 0}, "max_slots is 0; expected an integer >= 1"),
        ({"prefill_tokens": 1.5}, "prefill_tokens is 1.5; expected an integer >= 1"),
        ({"seed": -1}, "seed is -1; expected an integer >= 0"),
        ({"overlong_prompts": "cut"}, "overlong_prompts is 'cut'; expected 'error' or 'truncate'"),
        (
            {"cache_dtype": "int8"},
            "cache_dtype is 'int8'; expected 'model' or 'float32' or 'bfloat16'",
        ),
        (
            {"engine": "vanila"},
            "Unknown rollout engine 'vanila'. Did you mean 'vanilla'? Known: sglang_jax, vanilla, "
            "vllm.",
        ),
    ],
)
def test_wrong_config(settings, text):
    assert message(RolloutConfig, **settings) == text


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"vllm": VllmConfig(dtype="float32")},
            "rollout.vllm.dtype is 'float32', which only the engine 'vllm' reads, and "
            "rollout.engine is 'vanilla'; leave it out, or set rollout.engine='vllm'",
        ),
        (
            {"engine": "vllm", "sglang_jax": SglangJaxConfig(page_size=4, radix_cache=True)},
            "rollout.sglang_jax.radix_cache is True, which only the engine 'sglang_jax' reads, "
            "and rollout.engine is 'vllm'; leave it out, or set rollout.engine='sglang_jax'",
        ),
        (
            {"engine": "vllm", "prefill_tokens": 64},
            "rollout.prefill_tokens is 64, which vllm does not read; leave it out, and set "
            "rollout.vllm.max_num_batched_tokens instead",
        ),
    ],
)
def test_settings_that_the_engine_does_not_read_are_refused(settings, text):
    assert message(RolloutConfig, **settings) == text


def test_every_setting_of_an_engine_is_refused_beside_another():
    others = {bool: True, int: 7, float: 7.0, str: "x"}
    for kind, made in (("vllm", VllmConfig), ("sglang_jax", SglangJaxConfig)):
        for field in dataclasses.fields(made):
            knobs = made()
            value = others.get(type(vars(knobs)[field.name]), ("x",))
            if value == vars(knobs)[field.name]:
                value = not value
            object.__setattr__(knobs, field.name, value)
            text = message(RolloutConfig, **{kind: knobs})
            assert text.startswith(f"rollout.{kind}.{field.name} is {value!r}, which only")


def test_every_sampling_setting_of_the_config_reaches_the_parameters():
    given = {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "max_new_tokens": 3}
    assert dataclasses.asdict(RolloutConfig(**given).sampling([4, 2])) == {
        **given,
        "stop_ids": (4, 2),
    }


def test_what_changes_the_distribution_is_told():
    config = RolloutConfig()
    assert config.sampling().full_distribution
    for settings in ({"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}):
        assert not dataclasses.replace(config, **settings).sampling().full_distribution


def test_prompts_that_are_too_long_or_empty():
    config = RolloutConfig(max_prompt_tokens=4)
    assert fit_prompts([[1, 2, 3, 4], [5]], config) == [(1, 2, 3, 4), (5,)]
    assert message(fit_prompts, [[1], [2], [3], [1, 2, 3, 4, 5]], config) == (
        "prompt 3 has 5 tokens; max_prompt_tokens is 4. Raise rollout.max_prompt_tokens, shorten "
        "the prompt, or set rollout.overlong_prompts='truncate' (keeps the last tokens)"
    )
    assert message(fit_prompts, [[1], []], config) == (
        "prompt 1 is empty; a completion needs at least one token to start from (a "
        "beginning-of-text token, say)"
    )


def test_truncation_keeps_the_last_tokens_and_applied_twice_changes_nothing():
    config = RolloutConfig(max_prompt_tokens=4, overlong_prompts="truncate")
    once = fit_prompts([[1, 2, 3, 4, 5, 6], [7]], config)
    assert once == [(3, 4, 5, 6), (7,)]
    assert fit_prompts(once, config) == once


def test_requests_and_completions_check_themselves():
    assert message(Request, (1,), n=0) == "Request.n is 0; expected an integer >= 1"
    assert message(
        Completion,
        tokens=np.zeros(3, np.int32),
        logp=np.zeros(2, np.float32),
        stop_reason="stop",
        version=0,
    ) == ("a completion has one logp per token, got tokens of shape (3,) and logp of shape (2,)")
