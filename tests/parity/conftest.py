"""The peers' numbers for parity tests, and how close they must be."""

import inspect
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from zootomy.registry import describe, names, slots

sys.path.insert(0, str(Path(__file__).parent))  # helper modules beside the tests

DATA = Path(__file__).parent.parent / "data" / "parity"
SPECIAL = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf}
RTOL, ATOL = 1e-5, 1e-6

# Peer's file -> its largest error, the tests that looked at it, the blocks that ran in them.
_report: dict[str, dict[str, Any]] = {}
_blocks_run: set[str] = set()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder is a parity test."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.parity)


def _array(value: Any) -> Any:
    """Nested lists as float32 or int32 arrays, the three special words as numbers."""
    if isinstance(value, str):
        return SPECIAL.get(value, value)
    if isinstance(value, list):
        array = np.asarray([_array(entry) for entry in value])
        if array.dtype.kind == "U":
            return value
        return array.astype(np.float32 if array.dtype.kind == "f" else np.int32)
    return value


def _cases(file: str) -> list[SimpleNamespace]:
    """The cases of `family/block__peer`: params, inputs, outputs, grads, valid_where, notes."""
    record = json.loads((DATA / f"{file}.json").read_text())
    cases = []
    for index, case in enumerate(record["cases"]):
        arrays = {
            part: {name: _array(value) for name, value in case.get(part, {}).items()}
            for part in ("inputs", "outputs", "grads")
        }
        cases.append(
            SimpleNamespace(
                name=f"{file}[{index}]",
                params={name: _array(value) for name, value in case["params"].items()},
                valid_where=case.get("valid_where") or {},
                notes=case.get("notes", ""),
                **arrays,
            )
        )
    assert cases
    return cases


def _close(file: str, actual: Any, expected: Any, where: Any = None, rtol: float = RTOL) -> None:
    """Assert that a peer's number is met, and keep the largest error for the report."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    if where is not None:
        actual, expected = actual[np.asarray(where) > 0], expected[np.asarray(where) > 0]
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=ATOL, err_msg=file)
    finite = np.isfinite(actual) & np.isfinite(expected)
    actual, expected = actual[finite], expected[finite]
    worst = float((np.abs(actual - expected) / (1.0 + np.abs(expected))).max(initial=0.0))
    known = _report.setdefault(file, {"error": 0.0, "tests": set(), "blocks": set()})
    known["error"] = max(known["error"], worst)
    known["blocks"] |= _blocks_run
    path, test = os.environ["PYTEST_CURRENT_TEST"].split("[")[0].split(" ")[0].split("::")
    known["tests"].add(f"{Path(path).name}::{test}")


def _at_last_action(rewards: Any, mask: Any) -> np.ndarray:
    """`[N]` rewards as `[N, T]`, on the last action of each row."""
    placed = np.zeros(mask.shape, np.float32)
    for n, row in enumerate(mask):
        placed[n, np.flatnonzero(row)[-1]] = rewards[n]
    return placed


@pytest.fixture(scope="session")
def parity() -> Iterator[SimpleNamespace]:
    """`parity.cases("family/block__peer")`, `parity.close(file, actual, expected, where)`,
    `parity.at_last_action(rewards, mask)`.

    Where the environment variable ZOOTOMY_PARITY_REPORT names a file, the largest error of each
    peer's file, relative to 1 + |value|, its tests and the blocks they ran are added to it as JSON.
    """
    yield SimpleNamespace(cases=_cases, close=_close, at_last_action=_at_last_action, data=DATA)
    report = os.environ.get("ZOOTOMY_PARITY_REPORT")
    if report:
        path = Path(report)
        known = json.loads(path.read_text()) if path.exists() else {}
        plain = {
            file: {**entry, "tests": sorted(entry["tests"]), "blocks": sorted(entry["blocks"])}
            for file, entry in _report.items()
        }
        path.write_text(json.dumps(dict(sorted({**known, **plain}.items())), indent=1) + "\n")


@pytest.fixture(autouse=True)
def _watched() -> Iterator[None]:
    """Notes which blocks a test runs, where a report is asked for."""
    if "ZOOTOMY_PARITY_REPORT" not in os.environ:
        yield
        return
    codes = {
        inspect.unwrap(describe(place.name, name).function).__code__: f"{place.name}.{name}"
        for place in slots()
        if not place.choices
        for name in names(place.name)
    }
    _blocks_run.clear()

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code in codes:
            _blocks_run.add(codes[frame.f_code])

    sys.setprofile(note)
    yield
    sys.setprofile(None)
