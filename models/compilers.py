"""What the compiler is told, by platform: how hard to try, and whose products to take."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

# LLVM's own first level: what XLA has made of a program runs as fast on a CPU, for programs of
# many small loops, and is compiled in two thirds to four fifths of the time.
_QUICK: dict[str, Any] = {"xla_backend_optimization_level": 1}
# XLA for CPUs hands matrix products and sums to the YNNPACK library. Eigen, which it has as well,
# is 1.1 to 1.6 times as fast at the products, YNNPACK twice at the sums of a decode step: each gets
# what it does better.
_PRODUCTS: dict[str, Any] = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_REDUCE"}


def quick() -> dict[str, Any] | None:
    """Compiler options of a program of many small loops; None where there is nothing to gain."""
    return _QUICK if jax.default_backend() == "cpu" else None


def fast_products() -> dict[str, Any] | None:
    """Compiler options of a program of matrix products; None where there is nothing to gain."""
    return _PRODUCTS if jax.default_backend() == "cpu" and _known() else None


@functools.cache
def _known() -> bool:
    """Whether this compiler has the options, which are experimental: another may not."""
    try:
        jax.jit(jnp.negative, compiler_options=_PRODUCTS).lower(0.0).compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True
