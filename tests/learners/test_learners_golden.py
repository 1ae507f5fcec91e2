"""No change goes by unnoticed: each named algorithm's config and its numbers on fixed inputs.

After a change that was meant, run this file with `ZOOTOMY_WRITE_GOLDEN=1` in the environment: it
writes the numbers anew, and the difference in `tests/data/golden` says what the change did.
"""

import json
import os
from pathlib import Path

import jax
import numpy as np
import pytest
import zoo_inputs as given
from zootomy import algorithm, algorithms, assemble
from zootomy.learners import Outputs

FOLDER = Path(__file__).parent.parent / "data" / "golden"
WRITE = bool(os.environ.get("ZOOTOMY_WRITE_GOLDEN"))


def numbers(name):
    """Advantages, loss, metrics and gradients of an algorithm on the fixed inputs."""
    chosen = algorithm(name).resolve_length(given.T)
    experience, objective = assemble(chosen)
    coefficients = given.coefficients(chosen)
    batch, metrics = experience(given.make_rollouts(), coefficients)
    outputs = given.make_outputs(chosen)

    def total(logp, entropy, values):
        loss = objective(Outputs(logp, entropy, values), batch, coefficients)
        return loss.total, loss

    (value, loss), gradients = jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True)(
        *outputs[:3]
    )
    means = {key: mean(*pair) for key, pair in {**metrics, **loss.metrics}.items()}
    norms = dict(zip(("logp", "entropy", "values"), gradients, strict=True))
    return {
        "loss": float(value),
        "parts": {key: float(part) for key, part in sorted(loss.parts.items())},
        "advantages": np.asarray(batch.advantages, float).round(5).tolist(),
        "metrics": dict(sorted(means.items())),
        "gradient_norm": {
            key: float(np.linalg.norm(x)) for key, x in norms.items() if x is not None
        },
    }


def mean(total, weight):
    return float(total) / max(float(weight), 1.0)


def resolved(name):
    return json.loads(json.dumps(algorithm(name).to_dict()))


def leaves(tree, path=""):
    """Dotted path -> number."""
    if isinstance(tree, dict):
        return {k: v for key, x in tree.items() for k, v in leaves(x, f"{path}.{key}").items()}
    if isinstance(tree, list):
        return {k: v for i, x in enumerate(tree) for k, v in leaves(x, f"{path}.{i}").items()}
    return {path: tree}


@pytest.mark.parametrize("name", algorithms())
def test_nothing_has_changed(name):
    file = FOLDER / f"{name}.json"
    if WRITE:
        FOLDER.mkdir(parents=True, exist_ok=True)
        golden = {"config": resolved(name), "numbers": numbers(name)}
        file.write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    golden = json.loads(file.read_text(encoding="utf-8"))
    assert resolved(name) == golden["config"]
    now, before = leaves(numbers(name)), leaves(golden["numbers"])
    assert now.keys() == before.keys()
    for path, value in before.items():
        assert now[path] == pytest.approx(value, rel=2e-5, abs=2e-5), f"{name}: {path}"


def test_there_is_a_file_for_each_algorithm_and_no_other():
    assert {file.stem for file in FOLDER.glob("*.json")} == set(algorithms())


def test_the_inputs_tell_algorithms_apart():
    """Inputs on which two algorithms agree could not show that one has become the other."""
    seen = {}
    for name in algorithms():
        golden = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))["numbers"]
        key = json.dumps([golden["parts"], golden["gradient_norm"]])
        # The two forms of GSPO are the same while a row's advantages are, as their paper says.
        if name != "gspo_token":
            assert key not in seen, (name, seen.get(key))
        seen[key] = name
