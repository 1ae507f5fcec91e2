"""First steps, which compile: in a new process, and in one that finds what another has compiled."""

from __future__ import annotations

import shutil
import tempfile
import time

from children import Contestant, PeerError
from context import Bench
from rows import OURS, Row, cells, seconds

FIRST_STEP = 600.0  # seconds that a first step may take
ON_JAX = (OURS, "tunix")


def cold(
    bench: Bench, label: str, name: str, vocab: int, request: dict
) -> tuple[Contestant, float | None, float | None]:
    """A first step in a new process, the time since its start, and its memory after two steps."""
    began = time.perf_counter()
    one = Contestant(label, None, request)
    # Whatever the user's settings, no program comes from a cache.
    variables = {"JAX_ENABLE_COMPILATION_CACHE": "0"}
    try:
        one.child = bench.start(name, vocab, variables)
        one.answers.append(one.child.ask(**request, timeout=FIRST_STEP))
        since_start = time.perf_counter() - began
        one.child.ask(**request)
        memory = one.child.ask("peak_memory")["mib"]
    except PeerError as error:
        one.failed = str(error)
        return one, None, None
    bench.say(f"    {label}: first step {one.answers[0]['seconds']:.1f} s, {memory:.0f} MiB")
    return one, since_start, memory


def kept_row(bench: Bench, vocab: int, request: dict) -> Row:
    """First steps where an earlier process has left its compiled programs."""
    names = [name for name in ON_JAX if name == OURS or name in bench.peers]
    found = [_kept(bench, name, vocab, request) for name in names]
    return Row(
        "first step of a later process, compiled programs kept",
        vocab,
        "s",
        False,
        cells(found, seconds),
        notes=("as a command ours keeps its programs without being told; Tunix was told to",),
    )


def _kept(bench: Bench, name: str, vocab: int, request: dict) -> Contestant:
    """The second of two processes that share a folder of compiled programs."""
    folder = tempfile.mkdtemp(prefix=f"programs-{name}-", dir=bench.work)
    variables = {
        "JAX_COMPILATION_CACHE_DIR": folder,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",  # Or it leaves out what took less.
    }
    one = Contestant(name, None, request)
    try:
        for _ in range(2):
            with bench.children.group():
                child = bench.children.start(name, variables)
                child.ask("setup", model=bench.shared_model(vocab))
                one.answers = [child.ask(**request, timeout=FIRST_STEP)]
        took = one.answers[0]["seconds"]
        bench.say(f"    {name}: first step with kept programs {took:.1f} s")
    except PeerError as error:
        one.failed = str(error)
    shutil.rmtree(folder)
    return one
