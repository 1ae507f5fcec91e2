"""The examples in docstrings, module by module, on modules as they are imported."""

import doctest
import importlib
import pkgutil

import pytest
import zootomy


def modules() -> list[str]:
    """Names of the package's modules with an example in them."""
    found = []
    for one in pkgutil.walk_packages(zootomy.__path__, "zootomy."):
        # The checkout is the package: only its own rooms are part of it.
        room = one.name.split(".")[1]
        if room in ("tests", "docs", "examples", "benchmarks", "runs", "build"):
            continue
        specification = one.module_finder.find_spec(one.name, None)
        assert specification is not None
        assert specification.origin is not None
        with open(specification.origin, encoding="utf-8") as source:
            if ">>> " in source.read():
                found.append(one.name)
    return found


MODULES = modules()


@pytest.mark.usefixtures("clean_registry")
@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried
    assert not failed


def test_there_are_examples():
    assert len(MODULES) > 10
