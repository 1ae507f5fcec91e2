"""One engine of each kind for the whole session, and the table that the tests fill."""

import json
import os
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from zootomy.models import token_logps
from zootomy.rollout import RolloutConfig, make_engine
from zootomy.rollout.extras import installed

sys.path.insert(0, str(Path(__file__).parent))

from engines_under_contract import ENGINES, LIMITS, PACKAGES, open_engine, small_model

# Where the table goes, if anywhere: `make test-engines` sets it.
TABLE = "ZOOTOMY_CONTRACT_TABLE"


@pytest.fixture(scope="session")
def model():
    return small_model()


@pytest.fixture(scope="session")
def other():
    """The same structure with other weights."""
    return small_model(seed=1)


@pytest.fixture(scope="session", params=[
    pytest.param(kind, marks=pytest.mark.engines if kind in PACKAGES else ()) for kind in ENGINES
])  # fmt: skip
def kind(request):
    package = PACKAGES.get(request.param)
    if package is not None and installed(package) is None:
        pytest.skip(f"{package} is not installed")
    return request.param


@pytest.fixture(scope="session")
def opened(kind, model):
    engine = open_engine(kind, model)
    yield engine
    engine.close()


@pytest.fixture
def engine(opened, model):
    """The kind's engine with the model's weights, whatever a test before it sent."""
    if opened.version != 0:
        opened.update_weights(model, 0)
    return opened


@pytest.fixture(scope="session")
def vanilla(model):
    engine = make_engine(RolloutConfig(**LIMITS), model)
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def trainer(model):
    """The trainer's log-probabilities of a completion: whole rows, no cache."""
    width = LIMITS["max_prompt_tokens"] + LIMITS["max_new_tokens"]

    @nnx.jit
    def logps(model, tokens, segments, targets, temperature):
        hidden = model(tokens, jnp.arange(width)[None], segments)
        return token_logps(hidden, model.head_kernel(), targets, temperature=temperature)

    def of(prompt, completion, temperature, model=model):
        row = np.zeros((1, width), np.int32)
        whole = np.concatenate([np.asarray(prompt), completion.tokens])
        row[0, : len(whole)] = whole
        segments = (np.arange(width)[None] < len(whole)).astype(np.int32)
        targets = np.roll(row, -1, axis=1)
        found = np.asarray(logps(model, row, segments, targets, float(temperature))[0])[0]
        return found[len(prompt) - 1 : len(whole) - 1]

    return of


class Table:
    """Engine x property, filled by the tests."""

    def __init__(self):
        self.entries = {}

    def note(self, kind, name, text):
        self._entry(kind, name)["note"] = text

    def result(self, kind, name, word):
        """A property with several cases holds if it does in each."""
        entry = self._entry(kind, name)
        if entry.get("word") != "no":
            entry["word"] = word

    def _entry(self, kind, name):
        return self.entries.setdefault(name, {}).setdefault(kind, {})

    def texts(self):
        """Name -> kind -> what stands in the table."""
        return {
            name: {
                kind: f"{entry['word']}, {entry['note']}" if "note" in entry else entry["word"]
                for kind, entry in row.items()
            }
            for name, row in self.entries.items()
        }


@pytest.fixture(scope="session")
def table():
    return Table()


@pytest.fixture(scope="session", autouse=True)
def written(table):
    yield
    if os.environ.get(TABLE):
        Path(os.environ[TABLE]).write_text(json.dumps(table.texts(), indent=1), encoding="utf-8")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if report.when == "call" and "table" in item.funcargs and "kind" in item.funcargs:
        name = item.originalname.removeprefix("test_").replace("_", " ")
        word = "yes" if report.passed else "–" if report.skipped else "no"
        item.funcargs["table"].result(item.funcargs["kind"], name, word)
