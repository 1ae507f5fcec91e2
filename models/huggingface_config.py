"""Reading and writing `config.json`, with every field accounted for.

A field is read, or known to leave the model's output alone, or accepted only at the value that
does; any other field is refused by name, so that no setting is silently lost.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .config import FAMILIES, ModelConfig
from .huggingface_fields import (
    ARCHITECTURES,
    DEFAULTS,
    HARMLESS,
    ONLY_AT,
    ONLY_AT_BY_FAMILY,
    READ,
    SCALAR_ARCHITECTURES,
    SIZES,
)
from .huggingface_rope import parse_rope, rope_fields


def load_config(folder: str | Path, *, scalar: bool = False) -> ModelConfig:
    """The config of a causal language model in a Hugging Face folder.

    Args:
        folder: holds `config.json`.
        scalar: it is that of a sequence classifier instead.

    Returns:
        A `ModelConfig`.

    Raises:
        FileNotFoundError: if there is no `config.json`.
        ValueError: for a family, an architecture or a field that is not supported, by name.
    """
    fields = read_config_json(folder)
    check_architecture(fields, SCALAR_ARCHITECTURES if scalar else ARCHITECTURES)
    return parse_config(fields)


def read_config_json(folder: str | Path) -> dict[str, Any]:
    """The fields of `config.json` as they stand."""
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; a model folder holds config.json")
    fields = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(fields, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(fields).__name__}")
    return fields


def _family(fields: dict[str, Any]) -> str:
    family = fields.get("model_type")
    if family not in FAMILIES:
        raise ValueError(
            f"config.json: model_type {family!r} is not supported; supported are "
            f"{', '.join(FAMILIES)}"
        )
    return family


def check_architecture(fields: dict[str, Any], expected: dict[str, str]) -> None:
    """Refuse a folder whose `architectures` names another kind of model than the expected."""
    family = _family(fields)
    given = fields.get("architectures")
    if given is not None and given != [expected[family]]:
        raise ValueError(
            f"config.json: architectures {given!r} is not supported here; expected "
            f"{[expected[family]]!r}"
        )


def _refuse_unsupported(fields: dict[str, Any], family: str) -> None:
    """One error that names every field which would change the output and is not supported."""
    only_at = ONLY_AT | ONLY_AT_BY_FAMILY[family]
    refused = []
    for name, value in fields.items():
        if name in only_at:
            if value is not None and value not in only_at[name]:
                wanted = " or ".join(repr(choice) for choice in only_at[name])
                refused.append(f"{name} = {value!r} (supported: {wanted})")
        elif name not in READ and name not in HARMLESS and value is not None:
            refused.append(f"{name} = {value!r} (unknown field)")
    if refused:
        raise ValueError(
            "config.json has fields that may change the output and are not supported: "
            + "; ".join(sorted(refused))
            + ". Remove a field only if you know that the weights do not depend on it"
        )


def _refuse_sliding_window(fields: dict[str, Any], family: str, num_layers: int) -> None:
    kinds, window = fields["layer_types"], fields["sliding_window"]
    if kinds is not None:
        other = sorted({str(kind) for kind in kinds} - {"full_attention"})
        if other:
            raise ValueError(
                f"config.json: layer_types has {', '.join(other)}; only full_attention is supported"
            )
        if len(kinds) != num_layers:
            raise ValueError(
                f"config.json: layer_types has {len(kinds)} entries for {num_layers} layers"
            )
    if family == "llama":
        active = window is not None
    else:
        # Without layer_types, layers from max_window_layers on slide where the switch is on.
        switched_on = bool(fields["use_sliding_window"]) and window is not None
        active = switched_on and kinds is None and fields["max_window_layers"] < num_layers
    if active:
        raise ValueError(
            f"config.json: sliding_window = {window!r} is active and sliding attention is not "
            "supported"
        )


def _number(fields: dict[str, Any], name: str) -> float:
    value = fields[name]
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"config.json: {name} must be a number, got {value!r}")
    return float(value)


def read_token_ids(name: str, value: Any) -> tuple[int, ...]:
    """The ids of a field that holds one id, a list of them, or null."""
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        raise ValueError(f"config.json: {name} must be a whole number or a list, got {value!r}")
    return tuple(ids)


def _check_sizes(fields: dict[str, Any]) -> None:
    for name in SIZES:
        value = fields[name]
        optional = name in ("num_key_value_heads", "head_dim")
        if value is None and optional:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(
                f"config.json: {name} must be a whole number of at least 1, got {value!r}"
            )


def _switch(fields: dict[str, Any], name: str) -> bool:
    if not isinstance(fields[name], bool):
        raise ValueError(f"config.json: {name} must be true or false, got {fields[name]!r}")
    return fields[name]


def parse_config(given: dict[str, Any]) -> ModelConfig:
    """A `ModelConfig` from the fields of `config.json`.

    Args:
        given: the fields; absent ones take the defaults of transformers.

    Returns:
        A `ModelConfig`.

    Raises:
        ValueError: for a family or a field that is not supported, by name.
    """
    family = _family(given)
    _refuse_unsupported(given, family)
    fields = DEFAULTS[family] | given
    if family == "llama" and "sliding_window" not in given:
        fields["sliding_window"] = None
    _check_sizes(fields)
    heads, hidden = fields["num_attention_heads"], fields["hidden_size"]
    _refuse_sliding_window(fields, family, fields["num_hidden_layers"])
    biased = True if family == "qwen2" else _switch(fields, "attention_bias")
    if fields["head_dim"] is None and hidden % heads:
        raise ValueError(
            f"config.json: hidden_size {hidden} is not a multiple of num_attention_heads {heads} "
            "and head_dim is not given"
        )
    bos, pad = (read_token_ids(name, fields[name]) for name in ("bos_token_id", "pad_token_id"))
    return ModelConfig(
        family=family,
        vocab_size=fields["vocab_size"],
        hidden_size=hidden,
        intermediate_size=fields["intermediate_size"],
        num_layers=fields["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=heads
        if fields["num_key_value_heads"] is None
        else fields["num_key_value_heads"],
        head_dim=hidden // heads if fields["head_dim"] is None else fields["head_dim"],
        rms_norm_eps=_number(fields, "rms_norm_eps"),
        rope=parse_rope(fields),
        qkv_bias=biased,
        o_bias=biased and family != "qwen2",
        mlp_bias=_switch(fields, "mlp_bias") if family == "llama" else False,
        qk_norm=family == "qwen3",
        tie_embeddings=_switch(fields, "tie_word_embeddings"),
        max_positions=fields["max_position_embeddings"],
        initializer_range=_number(fields, "initializer_range"),
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=read_token_ids("eos_token_id", fields["eos_token_id"]),
        pad_token_id=pad[0] if pad else None,
    )


def config_fields(
    config: ModelConfig, dtype: str, architectures: dict[str, str] = ARCHITECTURES
) -> dict[str, Any]:
    """The fields of `config.json` that transformers reads back to the same model.

    Args:
        config: of the model.
        dtype: name of the storage dtype, such as `float32`.
        architectures: class name a family.

    Returns:
        A dictionary for JSON.
    """
    eos = list(config.eos_token_ids)
    fields: dict[str, Any] = {
        "architectures": [architectures[config.family]],
        "model_type": config.family,
        "dtype": dtype,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": rope_fields(config.rope),
        "tie_word_embeddings": config.tie_embeddings,
        "max_position_embeddings": config.max_positions,
        "initializer_range": config.initializer_range,
        "attention_dropout": 0.0,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": eos[0] if len(eos) == 1 else eos or None,
        "pad_token_id": config.pad_token_id,
        "use_cache": True,
    }
    if config.family == "llama":
        fields |= {"attention_bias": config.qkv_bias, "mlp_bias": config.mlp_bias}
    elif config.family == "qwen3":
        fields |= {"attention_bias": config.qkv_bias}
    if config.family != "llama":
        fields |= {
            "use_sliding_window": False,
            "sliding_window": None,
            "layer_types": ["full_attention"] * config.num_layers,
        }
    return fields
