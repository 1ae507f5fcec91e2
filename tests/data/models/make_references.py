"""Record what transformers computes for small random checkpoints, one folder a case.

Run in an environment with torch 2.13.0 and transformers 5.24.0:

    python tests/data/models/make_references.py tests/data/models

Each folder holds the checkpoint as transformers saves it and `reference.npz`: `ids` and
`positions` [rows, length], `logits` [rows, length, vocabulary] of a float32 forward pass of the
saved weights, and `greedy` [rows, 8], the tokens that argmax appends to `ids[:, :6]` at positions
0, 1, ... The `reward` folder holds `scores` [rows] instead.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    LlamaConfig,
    Qwen2Config,
    Qwen3Config,
)

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
}
CASES = {
    "rope_linear": (
        LlamaConfig(
            **SIZES, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
        ),
        {},
        torch.float32,
    ),
    "rope_llama3": (
        LlamaConfig(
            **SIZES,
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        ),
        {"max_shard_size": "20KB"},
        torch.bfloat16,
    ),
    "rope_yarn": (
        LlamaConfig(
            **SIZES,
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 8.0,
                "original_max_position_embeddings": 64,
            },
        ),
        {},
        torch.bfloat16,
    ),
    "rope_yarn_mscale": (
        Qwen3Config(
            **SIZES,
            head_dim=16,
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 1e6,
                "factor": 16.0,
                "original_max_position_embeddings": 32,
                "mscale": 1.0,
                "mscale_all_dim": 0.5,
                "beta_fast": 16.0,
                "beta_slow": 2.0,
                "truncate": False,
            },
        ),
        {},
        torch.float32,
    ),
    "llama_tied_biases": (
        LlamaConfig(**SIZES, tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
        {},
        torch.float16,
    ),
    "qwen2_free": (Qwen2Config(**SIZES, tie_word_embeddings=False), {}, torch.bfloat16),
    "qwen3_tied": (
        Qwen3Config(**SIZES, head_dim=24, tie_word_embeddings=True, attention_bias=True),
        {},
        torch.float32,
    ),
}
STARTS = (0, 60, 5000)  # where the rows' positions start: in, across and far beyond the context
LENGTH = 20


def randomise(model, seed):
    """Every parameter random, biases and norms too, so that none can be dropped unseen."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.2 * noise if "norm" in name else 0.2 * noise)


def save(auto, config, folder, options, dtype, seed):
    model = auto.from_config(config)
    randomise(model, seed)
    model.to(dtype).save_pretrained(folder, **options)
    return auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def greedy(model, ids, steps=8):
    for _ in range(steps):
        ids = torch.cat([ids, model(input_ids=ids).logits[:, -1:].argmax(-1)], dim=1)
    return ids[:, -steps:]


def main(root):
    for seed, (name, (config, options, dtype)) in enumerate(CASES.items()):
        model = save(AutoModelForCausalLM, config, root / name, options, dtype, seed)
        generator = torch.Generator().manual_seed(100 + seed)
        ids = torch.randint(0, 61, (len(STARTS), LENGTH), generator=generator)
        positions = torch.tensor(STARTS)[:, None] + torch.arange(LENGTH)
        with torch.no_grad():
            logits = model(input_ids=ids, position_ids=positions).logits
            tokens = greedy(model, ids[:, :6])
        np.savez_compressed(
            root / name / "reference.npz",
            ids=ids.numpy().astype(np.int32),
            positions=positions.numpy().astype(np.int32),
            logits=logits.numpy(),
            greedy=tokens.numpy().astype(np.int32),
        )
    config = LlamaConfig(**SIZES, num_labels=1, pad_token_id=0)
    kind = AutoModelForSequenceClassification
    model = save(kind, config, root / "reward", {}, torch.float32, 99)
    ids = torch.tensor([[5, 9, 33, 2, 0, 0], [7, 1, 4, 60, 21, 8]])
    mask = (ids != 0).long()
    with torch.no_grad():
        scores = model(input_ids=ids, attention_mask=mask).logits[:, 0]
    np.savez_compressed(
        root / "reward" / "reference.npz",
        ids=ids.numpy().astype(np.int32),
        last=np.array([3, 5], np.int32),
        scores=scores.numpy(),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
