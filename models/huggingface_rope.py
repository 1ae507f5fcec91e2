"""The rotary embedding in `config.json`, in its newer and its older form."""

from __future__ import annotations

from typing import Any

from .config import ROPE_KINDS, RopeConfig
from .huggingface_fields import DEFAULT_THETA, ROPE_NAMES


def _rope_dictionary(fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    scaling, parameters = fields.get("rope_scaling"), fields.get("rope_parameters")
    for name, value in (("rope_scaling", scaling), ("rope_parameters", parameters)):
        if value is not None and not isinstance(value, dict):
            raise ValueError(f"config.json: {name} must be an object, got {value!r}")
    if scaling and parameters:
        raise ValueError(
            "config.json: rope_scaling and rope_parameters are both given; keep one of them"
        )
    if scaling:
        return "rope_scaling", dict(scaling)
    return "rope_parameters", dict(parameters or {})


def parse_rope(fields: dict[str, Any]) -> RopeConfig:
    """The rotary embedding from `rope_parameters`, or from `rope_theta` and `rope_scaling`.

    Args:
        fields: all fields of `config.json`, defaults filled in.

    Returns:
        A `RopeConfig`.

    Raises:
        ValueError: for a kind or a field that is not supported, by name.
    """
    where, rope = _rope_dictionary(fields)
    legacy_kind = rope.pop("type", None)
    kind = rope.pop("rope_type", None) or legacy_kind or "default"
    theta = rope.pop("rope_theta", None)
    if theta is None:
        theta = fields.get("rope_theta")
    if theta is None:
        theta = DEFAULT_THETA
    partial = rope.pop("partial_rotary_factor", None)
    if partial is not None and partial != 1:
        raise ValueError(
            f"config.json: {where}.partial_rotary_factor = {partial!r} is not supported; only 1 is"
        )
    unknown = sorted(name for name in rope if name not in ROPE_NAMES and rope[name] is not None)
    if unknown and kind in ROPE_KINDS:
        raise ValueError(
            f"config.json: {where} has fields that are not supported: "
            + "; ".join(f"{name} = {rope[name]!r}" for name in unknown)
        )
    values = {ROPE_NAMES[name]: value for name, value in rope.items() if name in ROPE_NAMES}
    if kind in ("llama3", "yarn"):
        # A context given at the top level wins over the one in the object, as in transformers.
        original = fields.get("original_max_position_embeddings")
        if original is not None:
            values["original_max_positions"] = original
        elif values.get("original_max_positions") is None:
            values["original_max_positions"] = fields["max_position_embeddings"]
    if kind == "yarn":
        if "factor" in values and values["factor"] is None:
            values["factor"] = fields["max_position_embeddings"] / values["original_max_positions"]
        if "truncate" in values:
            values["truncate"] = bool(values["truncate"])
    try:
        return RopeConfig(kind=kind, theta=theta, **values)
    except ValueError as error:
        raise ValueError(f"config.json: {where}: {error}") from error


def rope_fields(rope: RopeConfig) -> dict[str, Any]:
    """The object `rope_parameters` that transformers reads back to the same embedding."""
    given = {name: vars(rope)[ours] for name, ours in ROPE_NAMES.items()}
    return {"rope_type": rope.kind, "rope_theta": rope.theta} | {
        name: value for name, value in given.items() if value is not None
    }
