"""Whole models from Hugging Face folders and back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TypeVar

import jax.numpy as jnp
from flax import nnx

from .axes import Placer
from .config import ModelConfig
from .decoder import Decoder
from .heads import RewardModel, ScalarModel, ValueModel
from .huggingface_config import (
    check_architecture,
    config_fields,
    load_config,
    parse_config,
    read_config_json,
    read_token_ids,
)
from .huggingface_fields import ARCHITECTURES, SCALAR_ARCHITECTURES
from .huggingface_read import read_weights
from .huggingface_write import write_weights
from .kernels import AttentionKernel
from .processes import is_first
from .stack import LayerStyle

Scalar = TypeVar("Scalar", bound=ScalarModel)

# What else a folder may hold that belongs to the model as it is used: tokenizer and generation.
COMPANION_FILES = (
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
)


def _abstract(kind, config: ModelConfig, **options):
    return nnx.eval_shape(lambda: kind(config, rngs=nnx.Rngs(0), **options))


def load_model(
    folder: str | Path,
    *,
    dtype=jnp.float32,
    param_dtype=None,
    remat: bool = False,
    layers: LayerStyle = "auto",
    attention: AttentionKernel = "auto",
    place: Placer | None = None,
) -> Decoder:
    """A causal language model from a Hugging Face folder.

    Args:
        folder: holds `config.json` and safetensors.
        dtype: dtype of the arithmetic; norms, softmax and logits are float32 anyway.
        param_dtype: dtype of the parameters; None: the same as `dtype`, whatever the file holds.
        remat: as of `Decoder`.
        layers: as of `Decoder`.
        attention: as of `Decoder`.
        place: `(path, shape) -> sharding` of a parameter, which is then read part by part and
            never as a whole on one device; None: whole on the default device.

    Returns:
        A `Decoder`.

    Raises:
        FileNotFoundError: if config or weights are absent.
        ValueError: for a field or a tensor that does not fit, by name.
    """
    param_dtype = dtype if param_dtype is None else param_dtype
    config = load_config(folder)
    model = _abstract(
        Decoder,
        config,
        dtype=dtype,
        param_dtype=param_dtype,
        remat=remat,
        layers=layers,
        attention=attention,
    )
    read_weights(
        model, folder, param_dtype=param_dtype, tied_head=config.tie_embeddings, place=place
    )
    return model


def load_scalar_model(
    folder: str | Path,
    kind: type[Scalar] = RewardModel,
    *,
    dtype=jnp.float32,
    param_dtype=None,
    remat: bool = False,
    layers: LayerStyle = "auto",
    attention: AttentionKernel = "auto",
    place: Placer | None = None,
) -> Scalar:
    """A reward or value model from a folder of a sequence classifier with one label.

    Args:
        folder: `config.json` names a `...ForSequenceClassification`.
        kind: `RewardModel` or `ValueModel`.
        dtype: dtype of the backbone's arithmetic.
        param_dtype: dtype of the backbone's parameters; None: the same as `dtype`.
        remat: as of `Decoder`.
        layers: as of `Decoder`.
        attention: as of `Decoder`.
        place: `(path, shape) -> sharding` of a parameter, which is then read part by part and
            never as a whole on one device; None: whole on the default device.

    Returns:
        A model of that kind.

    Raises:
        FileNotFoundError: if config or weights are absent.
        ValueError: for a field or a tensor that does not fit, by name; several labels do not.
    """
    param_dtype = dtype if param_dtype is None else param_dtype
    fields = read_config_json(folder)
    check_architecture(fields, SCALAR_ARCHITECTURES)
    model = _abstract(
        kind,
        parse_config(fields),
        dtype=dtype,
        param_dtype=param_dtype,
        remat=remat,
        layers=layers,
        attention=attention,
    )
    read_weights(model, folder, param_dtype=param_dtype, tied_head=False, place=place)
    model.score.kernel.set_value(model.score.kernel[...].astype(jnp.float32))
    return model


def save_model(
    model: Decoder | ScalarModel,
    folder: str | Path,
    *,
    dtype=None,
    max_shard_bytes: int | None = None,
    companions: str | Path | None = None,
    overwrite: bool = False,
) -> None:
    """Write a folder that transformers reads; of several processes, which all call it, the first.

    Args:
        model: a `Decoder`, or a `ValueModel` or `RewardModel` (as a sequence classifier with one
            label).
        folder: made if absent.
        dtype: storage dtype; None: that of the model's parameters.
        max_shard_bytes: None writes one file; otherwise shards of at most so many bytes.
        companions: a folder whose tokenizer and generation files are copied along.
        overwrite: replace weights that the folder already holds.

    Raises:
        FileExistsError: if the folder holds weights and `overwrite` is False.
        ValueError: for a dtype that is not float32, bfloat16 or float16, or an unmerged adapter.
    """
    folder = Path(folder)
    if is_first():
        folder.mkdir(parents=True, exist_ok=True)
    if isinstance(model, ScalarModel):
        body, architectures = model.backbone, SCALAR_ARCHITECTURES
    else:
        body, architectures = model, ARCHITECTURES
    stored = jnp.dtype(body.param_dtype if dtype is None else dtype)
    write_weights(model, folder, dtype=stored, max_shard_bytes=max_shard_bytes, overwrite=overwrite)
    if not is_first():
        return
    fields = config_fields(model.config, stored.name, architectures)
    if isinstance(model, ScalarModel):
        fields |= {"id2label": {"0": "score"}, "label2id": {"score": 0}}
    text = json.dumps(fields, indent=2) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")
    if companions is not None:
        for name in COMPANION_FILES:
            source = Path(companions) / name
            if source.is_file() and source.resolve() != (folder / name).resolve():
                shutil.copyfile(source, folder / name)


def load_stop_ids(folder: str | Path) -> tuple[int, ...]:
    """The ids that end a completion: of `generation_config.json`, else of `config.json`.

    Args:
        folder: a model folder.

    Returns:
        Ids in the file's order; empty where neither file names one.
    """
    path = Path(folder) / "generation_config.json"
    if path.is_file():
        value = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
        if value is not None:
            return read_token_ids("eos_token_id", value)
    return load_config(folder).eos_token_ids


__all__ = [
    "RewardModel",
    "ValueModel",
    "load_config",
    "load_model",
    "load_scalar_model",
    "load_stop_ids",
    "save_model",
]
