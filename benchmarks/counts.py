"""What the work takes, counted: parameters, floating-point operations, bytes.

Model FLOPs: a multiplication and an addition are two; only matrix products are counted, attention
over the tokens that a query may see (not the masked half), the head on the tokens that need it.
What an implementation does beyond that (padding, masked halves, recomputation) earns nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A decoder's sizes, in the words of a Hugging Face config.

    Attributes:
        layers: blocks.
        hidden: width of the residual stream (d).
        heads: query heads.
        kv_heads: key and value heads.
        head_dim: width of a head.
        inner: width of the gated MLP.
        vocab: number of tokens (V).
        tied: whether the head is the embedding.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocab: int
    tied: bool = False


def layer_weights(shape: Shape) -> int:
    """Entries of a layer's matrices: query and output, key and value, three of the MLP.

    2·d·h·k + 2·d·h_kv·k + 3·d·m
    """
    attention = 2 * shape.hidden * shape.head_dim * (shape.heads + shape.kv_heads)
    return attention + 3 * shape.hidden * shape.inner


def head_weights(shape: Shape) -> int:
    """Entries of the head, d·V."""
    return shape.hidden * shape.vocab


def parameters(shape: Shape) -> int:
    """All parameters of a Qwen3: matrices, two norms a layer, norms of queries and keys, the last.

    An embedding is a look-up: it has parameters and takes no operations.
    """
    norms = shape.layers * (2 * shape.hidden + 2 * shape.head_dim) + shape.hidden
    tables = 1 if shape.tied else 2
    return shape.layers * layer_weights(shape) + norms + tables * head_weights(shape)


def attention_flops(shape: Shape, pairs: int) -> int:
    """One layer's scores and weighted sums, 4·h·k a pair of a query and a key it sees."""
    return 4 * shape.heads * shape.head_dim * pairs


def causal_pairs(tokens: int, before: int = 0) -> int:
    """Pairs of a query and a key it sees, for `tokens` in a row that follow `before` others.

    Σ_{t=1..n} (before + t) = n·before + n(n+1)/2
    """
    return tokens * before + tokens * (tokens + 1) // 2


def read_flops(shape: Shape, tokens: int, before: int = 0) -> int:
    """The layers over `tokens` that follow `before` others of which keys and values are kept."""
    matrices = 2 * layer_weights(shape) * tokens
    attention = attention_flops(shape, causal_pairs(tokens, before))
    return shape.layers * (matrices + attention)


def head_flops(shape: Shape, tokens: int) -> int:
    """The head on `tokens`, 2·d·V each."""
    return 2 * head_weights(shape) * tokens


def logp_flops(shape: Shape, sequences: Iterable[tuple[int, int]]) -> int:
    """A pass for the log-probabilities of completions.

    Args:
        shape: the model.
        sequences: (tokens of the prompt, tokens of the completion) of each.
    """
    return sum(
        read_flops(shape, prompt + completion) + head_flops(shape, completion)
        for prompt, completion in sequences
    )


def shared_logp_flops(shape: Shape, groups: Iterable[tuple[int, Sequence[int]]]) -> int:
    """The same where a prompt is computed once for its completions.

    Args:
        shape: the model.
        groups: (tokens of the prompt, tokens of each of its completions) of each prompt.
    """
    total = 0
    for prompt, completions in groups:
        total += read_flops(shape, prompt)
        total += sum(
            read_flops(shape, n, before=prompt) + head_flops(shape, n) for n in completions
        )
    return total


def train_flops(shape: Shape, sequences: Iterable[tuple[int, int]]) -> int:
    """A forward and backward pass: each product of the forward pass has two in the backward."""
    return 3 * logp_flops(shape, sequences)


@dataclass(frozen=True)
class Generation:
    """What sampling takes, at the least.

    Attributes:
        prefill_flops: every prompt read once, the head on its last token.
        decode_flops: the other tokens, one at a time.
        decode_steps: passes in which they are decoded, all completions side by side.
        decode_bytes: weights read once a step; keys and values read once a step, those of a
            prompt once for its group.
    """

    prefill_flops: int
    decode_flops: int
    decode_steps: int
    decode_bytes: int


def generation(
    shape: Shape, groups: Sequence[tuple[int, Sequence[int]]], *, bytes_per_number: int = 4
) -> Generation:
    """Count a call of an engine.

    Args:
        shape: the model.
        groups: (tokens of the prompt, tokens of each of its completions) of each prompt.
        bytes_per_number: of weights, keys and values.

    Returns:
        The counts. A completion of C tokens takes C - 1 decode passes: its first token comes from
        the prompt's, and its last is not read.
    """
    prefill = decode = kv_read = steps = 0
    for prompt, completions in groups:
        prefill += read_flops(shape, prompt) + head_flops(shape, 1)
        for length in completions:
            passes = length - 1
            decode += read_flops(shape, passes, before=prompt) + head_flops(shape, passes)
            kv_read += causal_pairs(passes)
        longest = max(completions) - 1
        kv_read += prompt * longest
        steps = max(steps, longest)
    weights = shape.layers * layer_weights(shape) + head_weights(shape)
    numbers = steps * weights + kv_read * kv_numbers(shape)
    return Generation(prefill, decode, steps, numbers * bytes_per_number)


def kv_numbers(shape: Shape) -> int:
    """Keys and values of a token in all layers, 2·layers·h_kv·k."""
    return 2 * shape.layers * shape.kv_heads * shape.head_dim


def adamw_bytes(shape: Shape, *, bytes_per_number: int = 4) -> int:
    """Memory traffic of an AdamW step: gradient read; weight and two moments read and written."""
    return 7 * parameters(shape) * bytes_per_number
