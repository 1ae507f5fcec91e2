"""Logical names of the parameters' axes, as data; sharding rules map them to a mesh elsewhere."""

from __future__ import annotations

from typing import Any

from flax import nnx

# (module, leaf) -> axis names. `heads` and `kv_heads` axes hold heads times head width.
AXES: dict[tuple[str, str], tuple[str, ...]] = {
    ("embed_tokens", "embedding"): ("vocab", "embed"),
    ("lm_head", "kernel"): ("embed", "vocab"),
    ("score", "kernel"): ("embed", "score"),
    ("norm", "scale"): ("embed",),
    ("input_layernorm", "scale"): ("embed",),
    ("post_attention_layernorm", "scale"): ("embed",),
    ("q_norm", "scale"): ("head_dim",),
    ("k_norm", "scale"): ("head_dim",),
    ("q_proj", "kernel"): ("embed", "heads"),
    ("k_proj", "kernel"): ("embed", "kv_heads"),
    ("v_proj", "kernel"): ("embed", "kv_heads"),
    ("o_proj", "kernel"): ("heads", "embed"),
    ("q_proj", "bias"): ("heads",),
    ("k_proj", "bias"): ("kv_heads",),
    ("v_proj", "bias"): ("kv_heads",),
    ("o_proj", "bias"): ("embed",),
    ("gate_proj", "kernel"): ("embed", "mlp"),
    ("up_proj", "kernel"): ("embed", "mlp"),
    ("down_proj", "kernel"): ("mlp", "embed"),
    ("gate_proj", "bias"): ("mlp",),
    ("up_proj", "bias"): ("mlp",),
    ("down_proj", "bias"): ("embed",),
}


def logical_axes(model: nnx.Module) -> dict[tuple[Any, ...], tuple[str, ...]]:
    """The axis names of every parameter.

    Args:
        model: a `Decoder` or a model with a scalar head; may be abstract.

    Returns:
        Path of the parameter (as in `nnx.to_flat_state`) to one name an axis.

    Raises:
        ValueError: for a parameter that the table does not know.
    """
    named = {}
    for path, _ in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        key = (str(path[-2]), str(path[-1]))
        if key not in AXES:
            raise ValueError(f"parameter {'.'.join(map(str, path))} has no logical axes")
        named[path] = AXES[key]
    return named
