"""Adapters as a folder that PEFT reads, and back."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors.numpy import load_file, save_file

from ..registry import ZootomyError
from .lora import AdaptedLinear, LoraConfig, adapted_layers
from .processes import is_first, to_host

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
_PREFIX = "base_model.model.model."
_NEEDED = ("r", "lora_alpha", "target_modules")
# Settings that change what an adapter says, with the only value that adapters here can have.
_UNDERSTOOD: dict[str, Any] = {
    "peft_type": "LORA", "use_rslora": False, "use_dora": False, "bias": "none",
    "rank_pattern": {}, "alpha_pattern": {},
}  # fmt: skip


def save_adapters(model: nnx.Module, folder: str | Path, *, base_model: str = "") -> None:
    """Write a model's adapters as PEFT has them; what the folder holds of others is replaced.

    Of several processes, which all call it, the first writes.

    Args:
        model: a `Decoder` with adapters.
        folder: made if absent.
        base_model: the folder or name of the model under the adapters, which PEFT loads.

    Raises:
        ZootomyError: if the model has no adapters.
    """
    layers = adapted_layers(model)
    if not layers:
        raise ZootomyError("The model has no adapters to write; save_model writes the whole of it.")
    folder = Path(folder)
    tensors: dict[str, np.ndarray] = {}
    for name, layer in layers.items():
        for leaf, array in (("lora_A", layer.lora_a), ("lora_B", layer.lora_b)):
            tensors[f"{_PREFIX}{name}.{leaf}.weight"] = np.ascontiguousarray(to_host(array[...]).T)
    if not is_first():
        return
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    first = next(iter(layers.values()))
    rank = first.lora_a.shape[1]
    fields = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": rank,
        "lora_alpha": first.scale * rank,
        "lora_dropout": 0.0,
        "target_modules": _targets(model, layers),
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "inference_mode": True,
        "use_rslora": False,
        "use_dora": False,
    }
    text = json.dumps(fields, indent=2) + "\n"
    (folder / CONFIG_FILE).write_text(text, encoding="utf-8")


def read_adapter_config(folder: str | Path) -> LoraConfig:
    """The `LoraConfig` of a PEFT folder.

    Raises:
        ZootomyError: if it is no such folder, or asks for what adapters here do not do.
    """
    path = Path(folder) / CONFIG_FILE
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ZootomyError(f"{str(folder)!r} is no PEFT folder: {path.name}: {error}.") from error
    absent = [name for name in _NEEDED if name not in fields]
    if absent:
        raise ZootomyError(f"{path} has no {absent[0]!r}, which PEFT writes.")
    for name, value in _UNDERSTOOD.items():
        if fields.get(name, value) != value:
            raise ZootomyError(f"{path} has {name} {fields[name]!r}; only {value!r} can be read.")
    targets = fields["target_modules"]
    if isinstance(targets, str):
        raise ZootomyError(f"{path} has a pattern as target_modules; only a list can be read.")
    pattern = rf"(.*\.)?({'|'.join(map(re.escape, targets))})"
    return LoraConfig(rank=fields["r"], alpha=float(fields["lora_alpha"]), pattern=pattern)


def load_adapters(model: nnx.Module, folder: str | Path) -> None:
    """Give a model's adapters the weights of a PEFT folder.

    Args:
        model: a `Decoder` with adapters as the folder has them (`read_adapter_config`); changed in
            place.
        folder: holds `adapter_model.safetensors`.

    Raises:
        ZootomyError: if tensors are missing, unexpected or of another shape; it names the first.
    """
    path = Path(folder) / WEIGHTS_FILE
    if not path.is_file():
        raise ZootomyError(f"{str(folder)!r} is no PEFT folder: it has no {WEIGHTS_FILE}.")
    tensors = load_file(path)
    for name, layer in adapted_layers(model).items():
        for leaf, goal in (("lora_A", layer.lora_a), ("lora_B", layer.lora_b)):
            key = f"{_PREFIX}{name}.{leaf}.weight"
            if key not in tensors:
                raise ZootomyError(f"{path} lacks {key!r}, which the model has an adapter for.")
            array = tensors.pop(key).T
            if array.shape != goal.shape:
                raise ZootomyError(
                    f"{path} has {key!r} of shape {array.shape[::-1]}, the model has "
                    f"{goal.shape[::-1]}; is its rank another?"
                )
            goal.set_value(jnp.asarray(array, jnp.float32))
    if tensors:
        raise ZootomyError(f"{path} holds {min(tensors)!r}, which the model has no adapter for.")


def _targets(model: nnx.Module, layers: Mapping[str, AdaptedLinear]) -> list[str]:
    """The ends of names that PEFT takes: short ones where all projections of a kind are adapted."""
    kinds: dict[str, list[str]] = {}
    for path, module in nnx.iter_modules(model):
        if isinstance(module, nnx.Linear):
            kinds.setdefault(str(path[-1]), []).append(".".join(map(str, path)))
    targets: list[Any] = []
    for kind, names in sorted(kinds.items()):
        chosen = [name for name in names if name in layers]
        targets += [kind] if chosen and chosen == names else chosen
    return targets
