"""The rows of a run: what its settings and its longest sequences make of them."""

from __future__ import annotations

import operator

from ..registry import ZootomyError
from ..rollout.types import whole_number
from .config import ClusterConfig


def row_length(config: ClusterConfig, max_tokens: int | None, devices: int | None = None) -> int:
    """L, tokens a row: what is configured, or the longest sequence; filled up for the devices.

    Args:
        config: gives it, or leaves it open.
        max_tokens: the longest sequence of the run.
        devices: as of `ClusterConfig.mesh_shape`.

    Raises:
        ZootomyError: if neither says it, or a sequence might not fit.
    """
    if config.row_length is None and max_tokens is None:
        raise ZootomyError("Give row_length in the ClusterConfig, or max_tokens to the Cluster.")
    if config.row_length is None:
        return config.length(operator.index(max_tokens), devices)  # type: ignore[arg-type]
    if max_tokens is not None and config.row_length < max_tokens:
        raise ZootomyError(
            f"row_length={config.row_length} is shorter than the longest sequence of the run, "
            f"{max_tokens} tokens; raise row_length, or lower the prompt or completion limit."
        )
    return config.length(config.row_length, devices)


def shared_prompts(
    config: ClusterConfig,
    kernel: str,
    max_prompt_tokens: int | None,
    group_size: int,
    devices: int | None = None,
) -> tuple[int, int] | None:
    """P and G where the completions of a group share their prompt; None where they do not.

    Args:
        config: allows it, and says whether rows are whole on a device.
        kernel: whose program the models attend with.
        max_prompt_tokens: P, tokens of the longest prompt, if that is known.
        group_size: G.
        devices: as of `ClusterConfig.mesh_shape`.

    Raises:
        ZootomyError: for a P or G that is no integer of at least 1.
    """
    whole_number("group_size", group_size, 1, "an integer >= 1")
    if max_prompt_tokens is not None:
        whole_number("max_prompt_tokens", max_prompt_tokens, 1, "an integer >= 1")
    possible = config.share_prompts and kernel == "xla" and config.length_parts(devices) == 1
    return (max_prompt_tokens, group_size) if possible and max_prompt_tokens is not None else None
