"""Low-rank adapters on a model's projections, over a backbone that stays as it is."""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

import jax
import jax.numpy as jnp
from flax import nnx

from ..registry import ZootomyError
from .quantized import Frozen, dequantize, quantize

Model = TypeVar("Model", bound=nnx.Module)
Init = Literal["kaiming", "gaussian"]
Base = Literal["as_is", "nf4"]
SCORE = "score"
HEADS = ("lm_head", SCORE)


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Which projections have adapters, and of which size.

        y = x W + b + (alpha / rank) · (x A) B

    Attributes:
        rank: columns of A; 0 trains the whole model, without adapters.
        alpha: the adapters' weight is alpha / rank.
        pattern: a regular expression that the whole dotted name of a projection has to match, e.g.
            `.*(q|v)_proj`; the model's are `layers.N.self_attn.{q,k,v,o}_proj` and
            `layers.N.mlp.{gate,up,down}_proj`.
        init: how A begins; B begins at 0. `kaiming` is uniform within ±1/√inputs, `gaussian` is
            normal with a deviation of 1/rank.
        base: the weights under the adapters: `as_is`, or `nf4`, 4 bits each with a scale every 64
            inputs (QLoRA), which needs the extra `lora`.

    Raises:
        ZootomyError: for a value out of range, or a pattern that is no regular expression.
    """

    rank: int = 0
    alpha: float = 16.0
    pattern: str = r".*\.(q|k|v|o|gate|up|down)_proj"
    init: Init = "kaiming"
    base: Base = "as_is"

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise ZootomyError(f"lora.rank must be 0 or more, got {self.rank}.")
        for entry in dataclasses.fields(self) if not self.rank else ():
            if vars(self)[entry.name] != entry.default:
                raise ZootomyError(
                    f"lora.{entry.name} has no effect while lora.rank is 0; set lora.rank (8 is "
                    "usual)."
                )
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise ZootomyError(f"lora.alpha must be above 0, got {self.alpha}.")
        for name, choices in (("init", get_args(Init)), ("base", get_args(Base))):
            value = vars(self)[name]
            if value not in choices:
                raise ZootomyError(f"lora.{name} must be {' or '.join(choices)}, got {value!r}.")
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ZootomyError(
                f"lora.pattern {self.pattern!r} is no regular expression: {error}."
            ) from error


class AdaptedLinear(nnx.Linear):
    """A projection with an adapter; made by `add_adapters` out of a plain one.

    Attributes:
        lora_a: `[inputs, rank]` float32.
        lora_b: `[rank, outputs]` float32.
        scale: alpha / rank.
        base: the kernel `[inputs, outputs]` in few bits; None where `kernel` holds it.
    """

    lora_a: nnx.LoRAParam
    lora_b: nnx.LoRAParam
    scale: float
    base: Frozen | None

    def __call__(self, inputs: jax.Array, out_sharding: Any = None) -> jax.Array:
        """`[..., inputs]` to `[..., outputs]`."""
        if self.base is None:
            y = super().__call__(inputs, out_sharding)
        else:
            x, kernel = self.promote_dtype((inputs, dequantize(self.base)), dtype=self.dtype)
            y = x @ kernel
            if self.bias is not None:
                y = y + self.bias[...].astype(y.dtype)
        x, a, b = self.promote_dtype((inputs, self.lora_a[...], self.lora_b[...]), dtype=y.dtype)
        return y + ((x @ a) @ b) * jnp.asarray(self.scale, y.dtype)


def add_adapters(model: Model, config: LoraConfig, *, rngs: nnx.Rngs) -> Model:
    """A model with adapters on its projections, which says at first what the given one says.

    Args:
        model: a model without adapters, of which the arrays are shared, not copied; it is left
            as it is.
        config: which projections, and of which size.
        rngs: source of the fresh A.

    Raises:
        ZootomyError: if the pattern matches no projection, or the head, which has none.
    """
    if config.rank < 1:
        raise ZootomyError(f"Adapters need lora.rank of 1 or more, got {config.rank}.")
    if has_adapters(model):
        raise ZootomyError("The model has adapters already; merge them first.")
    adapted = _same_arrays(model)
    linear = _named(adapted, nnx.Linear)
    chosen = [name for name in linear if re.fullmatch(config.pattern, name)]
    heads = [name for name in chosen if name.split(".")[-1] in HEADS]
    if heads:
        raise ZootomyError(
            f"lora.pattern {config.pattern!r} matches {heads[0]!r}; a head cannot be adapted. "
            "Match the projections of the layers only."
        )
    if not chosen:
        raise ZootomyError(
            f"lora.pattern {config.pattern!r} matches no projection of the model; it has "
            f"{', '.join(sorted({_kind(name) for name in linear} - set(HEADS)))} in each of its "
            f"layers, e.g. {next(iter(linear))!r}."
        )
    for name in chosen:
        _adapt(linear[name], config, rngs)
    return adapted


def has_adapters(model: nnx.Module) -> bool:
    """Whether any projection of a model has an adapter."""
    return bool(jax.tree.leaves(nnx.state(model, nnx.LoRAParam)))


def adapted_layers(model: nnx.Module) -> dict[str, AdaptedLinear]:
    """The projections that have adapters, by dotted name."""
    return _named(model, AdaptedLinear)


def trained_part(model: nnx.Module) -> Any:
    """Which parameters training changes, as a filter of `nnx.split`.

    The adapters and the score head where there are adapters, else all.
    """
    if not has_adapters(model):
        return nnx.Param
    return nnx.Any(nnx.LoRAParam, nnx.PathContains(SCORE))


def without_deltas(adapters: dict[Any, Any]) -> dict[Any, Any]:
    """Adapters of the same shapes that add nothing: with them, a model is its backbone."""
    return jax.tree.map(jnp.zeros_like, adapters)


def merge_adapters(model: Model) -> Model:
    """The plain model that says what the adapted one says, each delta added once.

        W' = W + (alpha / rank) · A B, in float32, then rounded to the dtype of W

    Args:
        model: left as it is; arrays that no adapter changes are shared. One without adapters is
            returned as it is.
    """
    if not has_adapters(model):
        return model
    merged = _same_arrays(model)
    for layer in adapted_layers(merged).values():
        delta = layer.lora_a[...].astype(jnp.float32) @ layer.lora_b[...].astype(jnp.float32)
        base = layer.kernel[...] if layer.base is None else dequantize(layer.base)
        kernel = base.astype(jnp.float32) + layer.scale * delta
        if layer.base is None:
            layer.kernel.set_value(kernel.astype(layer.param_dtype))
        else:
            layer.kernel = nnx.Param(kernel.astype(layer.param_dtype))
        del layer.lora_a, layer.lora_b, layer.scale, layer.base
        layer.__class__ = nnx.Linear  # pyright: ignore[reportAttributeAccessIssue]
    return merged


def _adapt(layer: nnx.Linear, config: LoraConfig, rngs: nnx.Rngs) -> None:
    key, rank = rngs.params(), config.rank
    shape = (layer.in_features, rank)
    if config.init == "kaiming":
        bound = layer.in_features**-0.5
        a = jax.random.uniform(key, shape, jnp.float32, -bound, bound)
    else:
        a = jax.random.normal(key, shape, jnp.float32) / rank
    kernel = layer.kernel
    layer.__class__ = AdaptedLinear
    assert isinstance(layer, AdaptedLinear)
    layer.lora_a = nnx.LoRAParam(a)
    layer.lora_b = nnx.LoRAParam(jnp.zeros((rank, layer.out_features), jnp.float32))
    layer.scale = config.alpha / rank
    layer.base = nnx.data(None)
    if config.base == "nf4":
        layer.base = quantize(kernel[...])
        del layer.kernel


def _same_arrays(model: Model) -> Model:
    """Another model of the same arrays, whose modules and variables can be changed."""
    graph, state = nnx.split(model)
    # Merged as they are, both models would have the very same variables.
    return nnx.merge(graph, jax.tree.map(lambda array: array, state))


def _named(model: nnx.Module, kind: type[Any]) -> dict[str, Any]:
    return {
        ".".join(map(str, path)): module
        for path, module in nnx.iter_modules(model)
        if isinstance(module, kind)
    }


def _kind(name: str) -> str:
    return name.split(".")[-1]
