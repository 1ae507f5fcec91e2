"""What compilers are told, and what becomes of the memory that they leave."""

import ctypes

import jax
import jax.numpy as jnp
import pytest
from zootomy.models import compilers
from zootomy.models.compilers import fast_products


def test_only_a_cpu_is_told_anything(monkeypatch):
    options = fast_products()
    assert options["xla_cpu_experimental_ynn_fusion_type"] == "LIBRARY_FUSION_TYPE_REDUCE"
    product = jax.jit(lambda x: x @ x, compiler_options=options)(jnp.full((3, 3), 2.0))
    assert product.tolist() == [[12.0] * 3] * 3
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert fast_products() is None


def test_a_compiler_without_the_options_is_left_alone(monkeypatch):
    monkeypatch.setattr(compilers, "_PRODUCTS", {"xla_cpu_option_that_is_gone": "1"})
    compilers._known.cache_clear()
    assert fast_products() is None
    compilers._known.cache_clear()


@pytest.fixture
def trims(monkeypatch):
    """What a C library with `malloc_trim` is asked for, with a listener that dies with the test."""
    asked = []

    def malloc_trim(padding):
        asked.append(padding)

    class Library:
        def __init__(self, name):
            assert name is None
            self.malloc_trim = malloc_trim

    monkeypatch.setattr(ctypes, "CDLL", Library)
    listeners = []
    register = jax.monitoring.register_event_duration_secs_listener
    monkeypatch.setattr(
        jax.monitoring,
        "register_event_duration_secs_listener",
        lambda listener: (register(listener), listeners.append(listener)),
    )
    yield asked
    for listener in listeners:
        jax.monitoring.unregister_event_duration_listener(listener)


def test_memory_goes_back_after_a_program_that_took_long(trims, monkeypatch):
    compilers.release_after_compiling.__wrapped__()
    jax.jit(lambda x: x * 3.25)(jnp.ones(3))
    assert trims == []
    monkeypatch.setattr(compilers, "_LONG", 0.0)
    jax.monitoring.record_event_duration_secs("/jax/core/compile/jaxpr_trace_duration", 5.0)
    assert trims == []
    jax.jit(lambda x: x * 4.25)(jnp.ones(3))
    assert trims
    assert set(trims) == {0}


def test_another_c_library_is_left_alone(trims, monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    compilers.release_after_compiling.__wrapped__()
    monkeypatch.setattr(compilers, "_LONG", 0.0)
    jax.jit(lambda x: x * 5.25)(jnp.ones(3))
    assert trims == []
