"""What is measured: one model, one set of prompts, the same for everyone."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from counts import Shape

SEED = 0
PROMPT, COMPLETION = 32, 64
PROMPTS, GROUP = 8, 4
TAIL_PROMPTS, TAIL_LIMIT, TAIL_MEAN = 32, 256, 16
TAIL_SLOTS = 64  # ours; the default
THETA = 1_000_000.0  # Tunix rotates by this base whatever the config says
SMALL_VOCAB, LARGE_VOCAB = 512, 32_768
HUGE_VOCAB = 151_936

SHARED = Shape(layers=4, hidden=256, heads=4, kv_heads=2, head_dim=64, inner=768, vocab=SMALL_VOCAB)


def shape(vocab: int = SMALL_VOCAB, layers: int = SHARED.layers) -> Shape:
    """The shared shape with another vocabulary or depth."""
    return replace(SHARED, vocab=vocab, layers=layers)


@dataclass(frozen=True)
class Batch:
    """Sequences on which passes and training steps are measured.

    Attributes:
        path: of an `.npz` with `prompts [N, S]`, `completions [N, T]` int32, `advantages [N]`
            float32.
        rows: N.
        prompt: S.
        completion: T.
    """

    path: Path
    rows: int
    prompt: int
    completion: int

    @property
    def lengths(self) -> list[tuple[int, int]]:
        """(prompt, completion) of each sequence, as `counts` asks for them."""
        return [(self.prompt, self.completion)] * self.rows


def write_model(folder: Path, size: Shape, seed: int = SEED) -> Path:
    """Random weights as a Hugging Face folder with a tokenizer whose words are the numbers.

    Args:
        folder: made if it is not there; one that holds weights is kept.
        size: of a Qwen3 in float32.
        seed: draws the weights.
    """
    if (folder / "model.safetensors").is_file() and (folder / "tokenizer.json").is_file():
        return folder
    from zootomy.models import ModelConfig, RopeConfig, make_model, save_model

    config = ModelConfig(
        family="qwen3",
        vocab_size=size.vocab,
        hidden_size=size.hidden,
        intermediate_size=size.inner,
        num_layers=size.layers,
        num_heads=size.heads,
        num_kv_heads=size.kv_heads,
        head_dim=size.head_dim,
        qk_norm=True,
        tie_embeddings=size.tied,
        rope=RopeConfig(theta=THETA),
        max_positions=2048,
    )
    save_model(make_model(config, seed=seed), folder, overwrite=True)
    _write_tokenizer(folder, size.vocab)
    return folder


def _write_tokenizer(folder: Path, vocab: int) -> None:
    """Token i is the word `i`; padding and end have ids that no model of this size can sample."""
    # Without torch it advises to install it, which a tokenizer does not need.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {str(number): number for number in range(vocab)}
    words |= {"<pad>": vocab, "<end>": vocab + 1}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    tokenizer.decoder = decoders.Fuse()  # type: ignore[assignment]
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>"
    ).save_pretrained(folder)


def write_prompts(path: Path, vocab: int, prompts: int = PROMPTS, length: int = PROMPT) -> Path:
    """`prompts [P, S]` int32, drawn evenly from the vocabulary."""
    rng = np.random.default_rng([SEED, vocab, prompts, length])
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, prompts=rng.integers(0, vocab, (prompts, length), dtype=np.int32))
    return path


def write_batch(
    path: Path,
    vocab: int,
    rows: int = PROMPTS * GROUP,
    prompt: int = PROMPT,
    completion: int = COMPLETION,
    group: int = GROUP,
) -> Batch:
    """Random prompts, each of a group of completions, and advantages."""
    rng = np.random.default_rng([SEED, vocab, rows, prompt, completion])
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        path,
        prompts=rng.integers(0, vocab, (rows // group, prompt), dtype=np.int32).repeat(group, 0),
        completions=rng.integers(0, vocab, (rows, completion), dtype=np.int32),
        advantages=rng.standard_normal(rows).astype(np.float32),
    )
    return Batch(path, rows, prompt, completion)


def tail_stops(vocab: int = SMALL_VOCAB) -> list[int]:
    """Stop ids that make lengths geometric with the mean `TAIL_MEAN`.

    Random weights give every token nearly the same probability, so that each sixteenth id as a
    stop token ends a completion with probability 1/16 at every step.
    """
    return list(range(0, vocab, TAIL_MEAN))


def write_lengths(path: Path, lengths: list[int]) -> Path:
    """The lengths that all others are held to, as JSON."""
    path.write_text(json.dumps(lengths), encoding="utf-8")
    return path
