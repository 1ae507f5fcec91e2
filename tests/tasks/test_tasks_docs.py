"""The examples in this room's docstrings are true."""

import doctest
import importlib
import pkgutil

import pytest
import zootomy.tasks

MODULES = sorted(module.name for module in pkgutil.iter_modules(zootomy.tasks.__path__))


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    module = importlib.import_module(f"zootomy.tasks.{name}")
    assert doctest.testmod(module).failed == 0
