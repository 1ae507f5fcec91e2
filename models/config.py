"""What a decoder is made of: its sizes, its switches and its rotary embedding."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

FAMILIES = ("llama", "qwen2", "qwen3")
ROPE_KINDS = ("default", "linear", "llama3", "yarn")

# Which optional fields each kind of rotary embedding reads; any other that is set is an error.
_ROPE_FIELDS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "original_max_positions", "low_freq_factor", "high_freq_factor"),
    "yarn": (
        "factor",
        "original_max_positions",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    ),
}
_ROPE_REQUIRED = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "original_max_positions", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor", "original_max_positions"),
}
_ROPE_OPTIONAL = tuple(dict.fromkeys(name for names in _ROPE_FIELDS.values() for name in names))

_FAMILY_SWITCHES = {
    "llama": {"qk_norm": False},
    "qwen2": {"qkv_bias": True, "o_bias": False, "mlp_bias": False, "qk_norm": False},
    "qwen3": {"mlp_bias": False, "qk_norm": True},
}


@dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """The rotary position embedding; `rope.py` holds the formulas.

    Args:
        kind: `default`, `linear`, `llama3` or `yarn`.
        theta: base wavelength.
        factor: how many times longer the context became (all kinds but `default`).
        original_max_positions: context length before scaling, in tokens (`llama3`, `yarn`).
        low_freq_factor: `llama3`; wavelengths above `original_max_positions / low_freq_factor` are
            scaled in full.
        high_freq_factor: `llama3`; wavelengths below `original_max_positions / high_freq_factor`
            are left alone.
        attention_factor: `yarn`; factor on cos and sin. None: computed from `factor` and `mscale`.
        beta_fast: `yarn`; rotations over the original context above which nothing is scaled
            (None: 32).
        beta_slow: `yarn`; rotations below which everything is scaled (None: 1).
        mscale: `yarn`; numerator of the computed attention factor.
        mscale_all_dim: `yarn`; denominator of the computed attention factor.
        truncate: `yarn`; whether the ramp's ends are rounded to whole dimensions (None: yes).

    Raises:
        ValueError: for an unknown kind, a missing field, or a field that the kind does not read.
    """

    kind: str = "default"
    theta: float = 10000.0
    factor: float | None = None
    original_max_positions: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool | None = None

    def __post_init__(self):
        if self.kind not in ROPE_KINDS:
            raise ValueError(
                f"rope kind {self.kind!r} is not supported; choose one of {', '.join(ROPE_KINDS)}"
            )
        for name, value in vars(self).items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if name not in ("kind", "truncate") and value is not None and not is_number:
                raise ValueError(f"rope {name} must be a number, got {value!r}")
        if not self.theta > 0:
            raise ValueError(f"rope theta must be positive, got {self.theta}")
        values = {name: value for name, value in vars(self).items() if name in _ROPE_OPTIONAL}
        missing = [name for name in _ROPE_REQUIRED[self.kind] if values[name] is None]
        if missing:
            raise ValueError(f"rope kind {self.kind!r} needs {', '.join(missing)}")
        unread = [
            name
            for name, value in values.items()
            if value is not None and name not in _ROPE_FIELDS[self.kind]
        ]
        if unread:
            raise ValueError(
                f"rope kind {self.kind!r} does not read {', '.join(unread)}; remove it or choose "
                "another kind"
            )
        for name in ("factor", "original_max_positions", "low_freq_factor", "high_freq_factor"):
            if values[name] is not None and not values[name] > 0:
                raise ValueError(f"rope {name} must be positive, got {values[name]}")
        if self.kind == "llama3" and self.low_freq_factor == self.high_freq_factor:
            raise ValueError(
                "rope low_freq_factor and high_freq_factor must differ, both are "
                f"{self.low_freq_factor}"
            )


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes and switches of a decoder; Llama, Qwen2 and Qwen3 are three settings of it.

    Args:
        family: `llama`, `qwen2` or `qwen3`: how the model is written back. The arithmetic follows
            the switches below, which must be ones that the family has.
        vocab_size: number of token ids (V).
        hidden_size: width of the residual stream (D).
        intermediate_size: width of the gated MLP.
        num_layers: number of blocks.
        num_heads: query heads.
        num_kv_heads: key and value heads; divides `num_heads`.
        head_dim: width of a head, even; need not be `hidden_size / num_heads`.
        rms_norm_eps: added to the mean square before the root.
        rope: the rotary embedding.
        qkv_bias: biases on the query, key and value projections.
        o_bias: a bias on the output projection of attention.
        mlp_bias: biases on the three MLP projections.
        qk_norm: RMSNorm over each head of queries and keys, before the rotation.
        tie_embeddings: the head is the transposed embedding.
        max_positions: context length the model was made for; recorded, not enforced.
        initializer_range: standard deviation of fresh weights.
        bos_token_id: recorded for the written config.
        eos_token_ids: recorded for the written config.
        pad_token_id: recorded for the written config.

    Raises:
        ValueError: for sizes that do not fit together, or switches that the family does not have.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    family: str = "llama"
    rms_norm_eps: float = 1e-6
    rope: RopeConfig = field(default_factory=RopeConfig)
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tie_embeddings: bool = False
    max_positions: int = 2048
    initializer_range: float = 0.02
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None

    def __post_init__(self):
        if self.family not in FAMILIES:
            raise ValueError(
                f"family {self.family!r} is not supported; choose one of {', '.join(FAMILIES)}"
            )
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads")
        for name in (*sizes, "num_kv_heads", "head_dim", "max_positions"):
            value = vars(self)[name]
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads ({self.num_heads}) must be a multiple of num_kv_heads "
                f"({self.num_kv_heads}): each key head serves the same number of query heads"
            )
        if self.head_dim % 2:
            raise ValueError(
                f"head_dim must be even, because the rotary embedding turns pairs; got "
                f"{self.head_dim}"
            )
        if not (self.rms_norm_eps >= 0 and math.isfinite(self.rms_norm_eps)):
            raise ValueError(f"rms_norm_eps must be finite and >= 0, got {self.rms_norm_eps}")

        self._check_family()

    def _check_family(self):
        """A model that its family cannot express could not be written back after training."""
        for name, wanted in _FAMILY_SWITCHES[self.family].items():
            if vars(self)[name] != wanted:
                raise ValueError(
                    f"family {self.family!r} has {name}={wanted}, got {vars(self)[name]}; change "
                    "it or choose another family"
                )
        if self.family != "qwen2" and self.qkv_bias != self.o_bias:
            raise ValueError(
                f"family {self.family!r} has one switch for the biases of attention: qkv_bias "
                f"({self.qkv_bias}) and o_bias ({self.o_bias}) must agree"
            )
        if self.family == "llama" and self.hidden_size % self.num_heads:
            raise ValueError(
                f"family 'llama' needs a hidden_size ({self.hidden_size}) that is a multiple of "
                f"num_heads ({self.num_heads})"
            )
