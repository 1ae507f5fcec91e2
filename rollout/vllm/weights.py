"""The policy's weights as vLLM takes them: Hugging Face names, `[out, in]`, torch tensors."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from ...models import EMBEDDING, HEAD, ModelConfig, huggingface_name
from ...registry import ZootomyError
from ..names import Fused, Rule, Shape, check_names
from ..transfer import Delivery, SharedMemory, TransferConfig
from .names import expected_shapes, sent_names


class Outgoing(NamedTuple):
    """One parameter on its way.

    Attributes:
        name: the engine's.
        array: ours, as the trainer holds it.
        transposed: whether the engine wants it transposed.
    """

    name: str
    array: Any
    transposed: bool


def outgoing(
    named: Mapping[str, Any], config: ModelConfig, rules: tuple[Rule, ...]
) -> list[Outgoing]:
    """What is sent for parameters named by their dotted path; a tied head is sent as well.

    Raises:
        ZootomyError: for an adapter that was not merged, or a name without a rule.
    """
    found: dict[str, tuple[Any, bool]] = {}
    for path, array in named.items():
        try:
            name, transposed = huggingface_name(path.split("."))
        except ValueError as error:
            raise ZootomyError(str(error)) from error
        found[name] = (array, transposed)
    names = sent_names(found, config, rules)
    if config.tie_embeddings and EMBEDDING in found:
        found[HEAD] = found[EMBEDDING]
    return [Outgoing(names[name], array, transposed) for name, (array, transposed) in found.items()]


def huggingface_shapes(named: Mapping[str, Any]) -> dict[str, Shape]:
    """Shape by Hugging Face name, `[out, in]`."""
    found = {}
    for path, array in named.items():
        name, transposed = huggingface_name(path.split("."))
        found[name] = tuple(array.shape[::-1] if transposed else array.shape)
    return found


def check_parameters(
    named: Mapping[str, Any],
    theirs: Mapping[str, Shape | None],
    rules: tuple[Rule, ...],
    fused: tuple[Fused, ...],
) -> None:
    """Refuse a policy whose parameters are not those of the engine."""
    ours = expected_shapes(huggingface_shapes(named), rules, fused)
    check_names("vllm", ours, theirs)


def engine_parameters(model: Any) -> dict[str, Shape | None]:
    """Shape by name of a vLLM model's parameters, of the whole; None where it is not to be seen.

    On a CPU, matrices are packed for its kernels and their parameters left empty; with several
    workers each holds a part. A layer still says how large it is.
    """
    modules = dict(model.named_modules())
    found: dict[str, Shape | None] = {}
    for name, parameter in model.named_parameters():
        module, _, part = name.rpartition(".")
        sizes = vars(modules[module]) if module else {}
        shape: Shape | None = tuple(parameter.shape)
        if parameter.numel() == 0 or sizes.get("tp_size", 1) > 1:
            shape = _whole_shape(sizes, part)
        found[name] = shape
    return found


def _whole_shape(sizes: Mapping[str, Any], part: str) -> Shape | None:
    if "output_size" in sizes and "input_size" in sizes:
        out = sizes["output_size"]
        return (out,) if part == "bias" else (out, sizes["input_size"])
    if "num_embeddings_padded" in sizes:
        return sizes["num_embeddings_padded"], sizes["embedding_dim"]
    return None


def take_weights(worker: Any, delivery: Delivery, config: TransferConfig) -> None:
    """Load weights that another process has laid out, in one of several workers.

    Args:
        worker: vLLM's.
        delivery: the ticket; names are vLLM's, matrices `[out, in]`.
        config: of the transfer.
    """
    transfer = SharedMemory(config)
    received = transfer.receive(delivery).arrays
    parts = [Outgoing(name, array, False) for name, array in received.items()]
    worker.worker.reload_weights(weights_iterator=tensors(parts))
    transfer.close()


def laid_out(parts: list[Outgoing]) -> dict[str, Any]:
    """Arrays by the engine's name, `[out, in]`; views on a CPU."""
    return {name: np.asarray(array).T if transposed else array for name, array, transposed in parts}


def empty_cache(worker: Any) -> None:
    """Zeros in a worker's keys and values."""
    for cache in worker.worker.model_runner.kv_caches:
        cache.zero_()


def tensors(parts: list[Outgoing]) -> Iterator[tuple[str, Any]]:
    """Each parameter as a torch tensor; in host memory without a copy."""
    for name, array, transposed in parts:
        tensor = as_torch(array)
        yield name, tensor.t() if transposed else tensor


def as_torch(array: Any) -> Any:
    """A JAX or NumPy array as a torch tensor over the same memory where that is possible."""
    torch = importlib.import_module("torch")
    if isinstance(array, jax.Array):
        if not array.is_fully_addressable:
            raise ZootomyError(
                "weights are spread over several hosts; gather them before they are sent to vllm"
            )
        if array.is_fully_replicated:
            return torch.from_dlpack(array.addressable_data(0))
        array = np.asarray(array)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array if array.flags.writeable else array.copy())
