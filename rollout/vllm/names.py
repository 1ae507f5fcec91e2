"""vLLM's names: Hugging Face's go in; inside, projections that read the same input are one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...models import EMBEDDING, HEAD, ModelConfig
from ...registry import ZootomyError
from ..names import Fused, Rule, Shape, fuse_shapes, translate

# Llama, Qwen2 and Qwen3 alike.
RULES = (Rule(r"(.*)", r"\1"),)
FUSED = (
    Fused("qkv_proj", ("q_proj", "k_proj", "v_proj")),
    Fused("gate_up_proj", ("gate_proj", "up_proj")),
)

# tpu-inference's own models (MODEL_IMPL_TYPE=flax_nnx): Hugging Face names, and heads apart.
TPU_QWEN = (
    Rule(r"(.*)\.([qkv])_proj\.weight", r"\1.\2_proj.weight", "heads_out"),
    Rule(r"(.*)\.o_proj\.weight", r"\1.o_proj.weight", "heads_in"),
    Rule(r"(.*(?:gate|up|down)_proj|lm_head)\.weight", r"\1.weight", "in_out"),
    Rule(r"(.*)", r"\1"),
)
TPU_LLAMA = (
    Rule(r"model\.embed_tokens\.weight", r"model.embed.embedding"),
    Rule(r"lm_head\.weight", r"model.lm_head", "in_out"),
    Rule(r"(.*)\.([qkv])_proj\.weight", r"\1.\2_proj.kernel", "heads_out"),
    Rule(r"(.*)\.o_proj\.weight", r"\1.o_proj.kernel", "heads_in"),
    Rule(r"(.*(?:gate|up|down)_proj)\.weight", r"\1.kernel", "in_out"),
    Rule(r"(.*norm)\.weight", r"\1.scale"),
)
TPU_RULES = {"llama": TPU_LLAMA, "qwen2": TPU_QWEN, "qwen3": TPU_QWEN}


def with_user_rules(
    rules: Sequence[Rule], fused: Sequence[Fused], mapping_config: Mapping[str, Any]
) -> tuple[tuple[Rule, ...], tuple[Fused, ...]]:
    """The built-in rules behind those of `mapping_config`.

    Raises:
        ZootomyError: for entries that are no names.
    """
    rename = mapping_config.get("rename", {})
    given = mapping_config.get("fused", {})
    if not isinstance(rename, Mapping) or not isinstance(given, Mapping):
        raise ZootomyError(
            "rollout.vllm.mapping_config: 'rename' maps patterns to names, 'fused' modules to "
            "lists of parts"
        )
    mine = tuple(Rule(str(pattern), str(name)) for pattern, name in rename.items())
    more = tuple(Fused(str(whole), tuple(parts)) for whole, parts in given.items())
    return (*mine, *rules), (*more, *fused)


def sent_names(names: Iterable[str], config: ModelConfig, rules: Sequence[Rule]) -> dict[str, str]:
    """Hugging Face name -> the name under which it is sent; the tied head last.

    vLLM keeps a head of its own even where the weights are tied, so it is sent as well.
    """
    found = {name: translate(name, rules)[0] for name in names}
    if config.tie_embeddings and EMBEDDING in found:
        found[HEAD] = translate(HEAD, rules)[0]
    return found


def expected_shapes(
    shapes: Mapping[str, Shape], rules: Sequence[Rule], fused: Sequence[Fused]
) -> dict[str, Shape]:
    """What vLLM should hold, by its inner names."""
    return fuse_shapes({translate(name, rules)[0]: shape for name, shape in shapes.items()}, fused)
