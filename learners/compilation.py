"""Compiled programs: kept from run to run, and said when they are made."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import get_ident
from typing import Any

import jax

# What JAX records when it begins to look for a program in the cache, and when it has it.
_BEGINS = "/jax/compilation_cache/compile_requests_use_cache"
_ENDS = "/jax/core/compile/backend_compile_duration"
# Seconds of compilation from which on a program is kept: JAX's setting, its value, ours.
_LEAST = "jax_persistent_cache_min_compile_time_secs"
_USUAL_LEAST = 1.0
_WORTH_KEEPING = 0.1


def keep_compilations() -> None:
    """Keep compiled programs in the user's cache folder, so that a second run starts at once.

    Those are kept that took a tenth of a second, or what JAX was told by
    `JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS` or in its settings. Nothing is changed where it has
    been given a folder, by `JAX_COMPILATION_CACHE_DIR` or in its settings; an empty
    `JAX_COMPILATION_CACHE_DIR` keeps nothing.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ or jax.config.values["jax_compilation_cache_dir"]:
        return
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    jax.config.update("jax_compilation_cache_dir", str(Path(home) / "zootomy" / "xla"))
    chosen = _LEAST.upper() in os.environ or jax.config.values[_LEAST] != _USUAL_LEAST
    if not chosen:
        # A run has a dozen programs, of which JAX would leave out those that took below a second.
        jax.config.update(_LEAST, _WORTH_KEEPING)


@contextlib.contextmanager
def compilations_told(tell: Callable[[str], None]) -> Iterator[None]:
    """Say "compiling" for as long as any program is compiled, and an empty text when none is.

    It hears of compilations only while programs are kept; see `keep_compilations`.

    Args:
        tell: given the text.
    """

    at_work: set[int] = set()  # threads that compile

    def begins(event: str, **_: Any) -> None:
        if event == _BEGINS:
            at_work.add(get_ident())
            tell("compiling")

    def ends(event: str, duration_secs: float, **_: Any) -> None:
        del duration_secs
        if event == _ENDS:
            at_work.discard(get_ident())
            if not at_work:
                tell("")

    jax.monitoring.register_event_listener(begins)
    jax.monitoring.register_event_duration_secs_listener(ends)
    try:
        yield
    finally:
        jax.monitoring.unregister_event_listener(begins)
        jax.monitoring.unregister_event_duration_listener(ends)
