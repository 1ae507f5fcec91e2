"""Entropies and log-probabilities against numbers that other libraries returned."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zootomy.models import token_stats

FOLDER = Path(__file__).parents[1] / "data" / "parity" / "distribution"
FILES = sorted(path.name for path in FOLDER.glob("*.json"))

pytestmark = pytest.mark.parity


def statistics(logits, targets, temperature):
    """An identity kernel turns logits into hidden states."""
    return token_stats(
        logits,
        jnp.eye(logits.shape[-1]),
        targets,
        temperature=temperature,
        chunk=4,
        with_entropy=True,
        with_sum_pi_squared=True,
    )


@jax.jit
def outputs_and_gradients(logits, targets, temperature, cotangent):
    def weighted(logits, name):
        return (cotangent * getattr(statistics(logits, targets, temperature), name)).sum()

    gradients = {name: jax.grad(weighted)(logits, name) for name in ("logp", "entropy")}
    return statistics(logits, targets, temperature), gradients


def array(values, dtype=np.float32):
    return jnp.asarray(np.asarray(values, dtype))


@pytest.mark.parametrize("file", FILES)
def test_equals_the_recorded_numbers(file):
    for case in json.loads((FOLDER / file).read_text())["cases"]:
        inputs = case["inputs"]
        logits = array(inputs["logits"])
        shape = logits.shape[:-1]
        targets = array(inputs.get("labels", np.zeros(shape)), np.int32)
        cotangent = array(inputs.get("cotangent", np.ones(shape)))
        temperature = case["params"].get("temperature", 1.0)
        stats, gradients = outputs_and_gradients(logits, targets, temperature, cotangent)
        keep = array(inputs.get("mask", np.ones(shape)))
        for name, wanted in case["outputs"].items():
            got = np.asarray(getattr(stats, name) * keep)
            # Some of the recorded entropies lost digits (one is -4e-6), and so did their gradients.
            np.testing.assert_allclose(got, array(wanted), rtol=1e-5, atol=1e-5)
            if "grads" in case and "logits" in case["grads"]:
                wanted = array(case["grads"]["logits"])
                np.testing.assert_allclose(gradients[name], wanted, rtol=1e-5, atol=2e-5)


def test_all_recorded_files_are_there():
    assert len(FILES) == 12
