"""What the compiler is told, by platform: how hard to try, and whose products to take."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

# LLVM's own first level: what XLA has made of a program runs as fast on a CPU, where products are a
# library's and loops are small, and is compiled in two thirds to seven eighths of the time.
_QUICK: dict[str, Any] = {"xla_backend_optimization_level": 1}
# XLA for CPUs hands matrix products and sums to the YNNPACK library. Eigen, which it has as well,
# is 1.1 to 1.6 times as fast at the products, YNNPACK twice at the sums of a decode step: each gets
# what it does better.
_PRODUCTS: dict[str, Any] = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_REDUCE"}

# What JAX records when it has compiled a program, and the seconds from which on much was freed.
_COMPILED, _LONG = "/jax/core/compile/backend_compile_duration", 1.0


def quick() -> dict[str, Any] | None:
    """Compiler options of most programs; None where there is nothing to gain."""
    return _QUICK if jax.default_backend() == "cpu" else None


class QuickJit:
    """`jax.jit` with the options of `quick`, asked for when the first call comes.

    To ask for the platform starts it, which is no business of an import.

    Args:
        function: what is compiled.
        wide_products: whether its products are of many tokens and nothing else matters as much,
            as in a pass without gradient: then they get the library that is best at them.
        options: of `jax.jit`.
    """

    def __init__(
        self, function: Callable[..., Any], *, wide_products: bool = False, **options: Any
    ):
        functools.update_wrapper(self, function)
        self._function = function
        self._wide_products = wide_products
        self._options = options

    @functools.cached_property
    def jitted(self) -> Any:
        """What `jax.jit` makes of it."""
        release_after_compiling()
        options = quick()
        if self._wide_products and options is not None:
            options = {**options, **(fast_products() or {})}
        return jax.jit(self._function, compiler_options=options, **self._options)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the compiled function."""
        return self.jitted(*arguments, **named)

    def lower(self, *arguments: Any, **named: Any) -> Any:
        """As of `jax.jit`; the arguments may be shapes."""
        return self.jitted.lower(*arguments, **named)


@functools.cache
def release_after_compiling() -> None:
    """Give back to the system what a compiler has freed, whenever one has worked for a second.

    Glibc would keep it, some hundred MiB, where arrays of many MiB find no place.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # Another C library.
        return
    trim.argtypes = [ctypes.c_size_t]

    def ends(event: str, duration_secs: float, **_: Any) -> None:
        if event == _COMPILED and duration_secs >= _LONG:
            trim(0)

    jax.monitoring.register_event_duration_secs_listener(ends)


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
