"""Compiler options of products; a compiler that does not know them gets none."""

import jax
import jax.numpy as jnp
from zootomy.models import compilers, fast_products


def test_only_a_cpu_is_told_anything(monkeypatch):
    options = fast_products()
    assert options == {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_REDUCE"}
    product = jax.jit(lambda x: x @ x, compiler_options=options)(jnp.full((3, 3), 2.0))
    assert product.tolist() == [[12.0] * 3] * 3
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert fast_products() is None


def test_a_compiler_without_the_options_is_left_alone(monkeypatch):
    monkeypatch.setattr(compilers, "_PRODUCTS", {"xla_cpu_option_that_is_gone": "1"})
    compilers._known.cache_clear()
    assert fast_products() is None
    compilers._known.cache_clear()
