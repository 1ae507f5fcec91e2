"""How hard the compiler tries, where it need not."""

from __future__ import annotations

from typing import Any

import jax

# LLVM's own first level: what XLA has made of a program runs as fast on a CPU, for programs of
# many small loops, and is compiled in two thirds to four fifths of the time.
_QUICK: dict[str, Any] = {"xla_backend_optimization_level": 1}


def quick() -> dict[str, Any] | None:
    """Compiler options of a program of many small loops; None where there is nothing to gain."""
    return _QUICK if jax.default_backend() == "cpu" else None
