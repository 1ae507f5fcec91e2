"""The engines under contract: how each kind is opened, and the calls they are tried with."""

import dataclasses

import numpy as np
import pytest
from zootomy import ZootomyError
from zootomy.models import PRESETS, make_model
from zootomy.rollout import Request, RolloutConfig, make_engine
from zootomy.rollout.remote import RemoteEngine
from zootomy.rollout.vllm import VllmConfig

VOCABULARY = 23
LIMITS = {"max_prompt_tokens": 12, "max_new_tokens": 24, "max_slots": 16}
ENGINES = ("vanilla", "vanilla, own process", "vllm", "vllm, server", "sglang_jax")
PACKAGES = {"vllm": "vllm", "vllm, server": "vllm", "sglang_jax": "sgl_jax"}
# ragged, with a prompt of one token and one of the largest length
REQUESTS = [
    Request((3, 1, 4, 1, 5), n=2),
    Request((9,), n=1),
    Request((2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3), n=3),
    Request((8, 4), n=2),
]
PLAIN = RolloutConfig(**LIMITS).sampling()
GREEDY = dataclasses.replace(PLAIN, temperature=0.0)


def small_model(seed=0, **changes):
    """Wide weights, so that distributions are far from uniform; heads of 128, which fit all."""
    preset = dataclasses.replace(
        PRESETS["small"], initializer_range=0.3, max_positions=64, **{"head_dim": 128, **changes}
    )
    return make_model(preset, seed=seed, vocab_size=VOCABULARY)


def config_of(kind, **changes):
    """The settings of an engine of a kind."""
    name = kind.split(",")[0]
    given = {**LIMITS, "engine": name, **changes}
    if kind == "vllm, server":
        given["vllm"] = VllmConfig(server_mode=True)
    return RolloutConfig(**given)


def open_engine(kind, model, **changes):
    """A new engine of a kind with the model's weights as version 0."""
    config = config_of(kind, **changes)
    if kind != "vanilla, own process":
        return make_engine(config, model)
    engine = RemoteEngine(config, model.config, model.dtype.name)
    engine.update_weights(model, 0)
    return engine


def flat(groups):
    """All completions of all groups."""
    return [one for group in groups for one in group]


def same(some, others):
    """Whether two lists of completions have the same tokens."""
    return len(some) == len(others) and all(
        np.array_equal(a.tokens, b.tokens) for a, b in zip(some, others, strict=True)
    )


def message(function, *args, **kwargs):
    """The text of the error that a call must end in."""
    with pytest.raises(ZootomyError) as error:
        function(*args, **kwargs)
    return str(error.value)
