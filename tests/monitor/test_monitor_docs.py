"""The examples in this room's docstrings are true."""

import doctest
import importlib
import pkgutil

import pytest
import zootomy.monitor

MODULES = sorted(module.name for module in pkgutil.iter_modules(zootomy.monitor.__path__))


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    module = importlib.import_module(f"zootomy.monitor.{name}")
    assert doctest.testmod(module).failed == 0
