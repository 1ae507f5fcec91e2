"""Shared test settings: CPU only, eight host devices, one compilation cache for the run."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
flags = os.environ.get("XLA_FLAGS", "")
if "xla_force_host_platform_device_count" not in flags:
    flags = f"{flags} --xla_force_host_platform_device_count=8".strip()
# Most of the tests' time is compilation, which takes less than half of it this way. What a test
# starts as a process, and all tests with ZOOTOMY_COMPILE=as-users, compile as users' runs do.
quickly: dict = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 0}
if os.environ.get("ZOOTOMY_COMPILE") == "as-users":
    quickly = {}
told = [f"--{name}={str(value).lower()}" for name, value in quickly.items()]
os.environ["XLA_FLAGS"] = " ".join([flags, *told])

import math  # noqa: E402
import re  # noqa: E402
import tempfile  # noqa: E402
from collections import Counter  # noqa: E402
from pathlib import Path  # noqa: E402

# What one test or one run has compiled, the next need not. What takes less than a tenth of a second
# is mostly one operation, in one test.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(tempfile.gettempdir()) / "zootomy-tests-xla")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")

import jax  # noqa: E402
import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402
from zootomy.models import compilers  # noqa: E402

jax.devices()  # Reads the flags.
os.environ["XLA_FLAGS"] = flags
compilers._QUICK.update(quickly)
compilers._PRODUCTS.update(quickly)

# Deadlines measure the machine, not the code: a first example pays for compilation.
settings.register_profile("zootomy", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("zootomy")


@pytest.fixture
def clean_registry():
    """Undo what a test registers."""
    from zootomy.registry import registry

    saved = registry.snapshot()
    yield
    registry.restore(saved)


@pytest.fixture
def compiled():
    """The programs that are compiled meanwhile, by name."""
    names = []

    def hear(event, duration_secs, **said):
        del duration_secs
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(said["fun_name"])

    jax.monitoring.register_event_duration_secs_listener(hear)
    yield names
    jax.monitoring.unregister_event_duration_listener(hear)


@pytest.fixture
def sent():
    """Reads what a compiled program sends between devices: numbers by operation, but scalars."""

    def count(program):
        found = Counter()
        for results, operation in _COLLECTIVE.findall(program.as_text()):
            for shape in _SHAPE.findall(results):
                if shape:
                    found[operation] += math.prod(map(int, shape.split(",")))
        return dict(found)

    return count


_COLLECTIVE = re.compile(
    r"= (.+?) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
)
_SHAPE = re.compile(r"\[([\d,]*)\]")
