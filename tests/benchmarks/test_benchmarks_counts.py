"""Counts of work, each with its arithmetic."""

import counts
import pytest
from counts import Shape

TINY = Shape(layers=2, hidden=6, heads=3, kv_heads=1, head_dim=4, inner=10, vocab=11)
# A layer's matrices: q 6·12, k and v 6·4 each, o 12·6, gate, up and down 6·10 each.
LAYER = 72 + 24 + 24 + 72 + 3 * 60  # 372


def test_a_layers_matrices():
    assert counts.layer_weights(TINY) == LAYER == 372


def test_parameters():
    # Two layers of 372 + two norms of 6 + norms of queries and keys of 4; the last norm; two tables
    # of 6·11.
    assert counts.parameters(TINY) == 2 * (372 + 12 + 8) + 6 + 2 * 66 == 922
    tied = Shape(**{**vars(TINY), "tied": True})
    assert counts.parameters(tied) == 922 - 66


def test_parameters_are_those_of_the_model():
    from flax import nnx
    from jax import tree
    from zootomy.models import ModelConfig, make_model

    config = ModelConfig(
        family="qwen3", vocab_size=11, hidden_size=6, intermediate_size=10, num_layers=2,
        num_heads=3, num_kv_heads=1, head_dim=4, qk_norm=True,
    )  # fmt: skip
    leaves = tree.leaves(nnx.state(make_model(config), nnx.Param))
    assert sum(leaf.size for leaf in leaves) == counts.parameters(TINY)


def test_causal_pairs():
    assert counts.causal_pairs(3) == 1 + 2 + 3
    assert counts.causal_pairs(3, before=5) == 6 + 7 + 8
    assert counts.causal_pairs(0, before=5) == 0


def test_reading_tokens():
    # Five tokens: a multiplication and an addition for every entry of the matrices, and for the
    # 15 pairs a score and a weighted value of 4 numbers in each of 3 heads.
    one_layer = 2 * 372 * 5 + 15 * 3 * (2 * 4 + 2 * 4)
    assert counts.read_flops(TINY, 5) == 2 * one_layer == 8880
    # Read in two parts it is the same work.
    assert counts.read_flops(TINY, 2) + counts.read_flops(TINY, 3, before=2) == 8880


def test_the_head_runs_on_completions_only():
    # A prompt of 3, completions of 2 and 4: 5 and 7 tokens are read, 6 go through the head.
    want = counts.read_flops(TINY, 5) + counts.read_flops(TINY, 7) + 2 * 66 * 6
    assert counts.logp_flops(TINY, [(3, 2), (3, 4)]) == want
    assert counts.train_flops(TINY, [(3, 2), (3, 4)]) == 3 * want


def test_a_prompt_once_for_its_completions():
    # A prompt of 3 with completions of 2 and 4: the prompt, and each completion after 3 tokens.
    once = (
        counts.read_flops(TINY, 3) + counts.read_flops(TINY, 2, 3) + counts.read_flops(TINY, 4, 3)
    )
    assert counts.shared_logp_flops(TINY, [(3, [2, 4])]) == once + 2 * 66 * 6
    # Less than with a prompt each by one reading of it.
    apart = counts.logp_flops(TINY, [(3, 2), (3, 4)])
    assert apart - counts.shared_logp_flops(TINY, [(3, [2, 4])]) == counts.read_flops(TINY, 3)


def test_generation():
    # A prompt of 3 with completions of 2 and 4 tokens: decoded are 1 and 3, in 3 steps.
    found = counts.generation(TINY, [(3, [2, 4])], bytes_per_number=2)
    assert found.prefill_flops == counts.read_flops(TINY, 3) + 2 * 66
    decoded = counts.read_flops(TINY, 1, before=3) + counts.read_flops(TINY, 3, before=3)
    assert found.decode_flops == decoded + 2 * 66 * 4
    assert found.decode_steps == 3
    # Weights three times; keys and values of 1·4 numbers, twice, in 2 layers: the prompt's three
    # tokens a step, once for both, and of the completions 1 and 1 + 2 + 3 tokens.
    weights = 2 * 372 + 66
    kept = 2 * 2 * 4 * (3 * 3 + 1 + 6)
    assert found.decode_bytes == 2 * (3 * weights + kept)


def test_a_completion_of_one_token_is_not_decoded():
    found = counts.generation(TINY, [(3, [1, 1])])
    assert (found.decode_flops, found.decode_steps, found.decode_bytes) == (0, 0, 0)


def test_bytes_of_an_optimizer_step():
    # Read: gradient, weight, two moments; written: weight, two moments.
    assert counts.adamw_bytes(TINY) == (4 + 3) * 922 * 4


def test_the_compiler_counts_a_forward_pass_likewise():
    """XLA's count has the masked half of attention and what is no product on top: a few percent."""
    import jax
    import jax.numpy as jnp
    from zootomy.models import ModelConfig, make_model

    config = ModelConfig(
        family="qwen3", vocab_size=96, hidden_size=64, intermediate_size=192, num_layers=1,
        num_heads=4, num_kv_heads=2, head_dim=16, qk_norm=True,
    )  # fmt: skip
    size = Shape(layers=1, hidden=64, heads=4, kv_heads=2, head_dim=16, inner=192, vocab=96)
    model = make_model(config)
    tokens = jnp.zeros((2, 8), jnp.int32)
    positions = jnp.broadcast_to(jnp.arange(8), (2, 8))

    def run(tokens):
        return model.logits(model(tokens, positions))

    analysis = jax.jit(run).lower(tokens).compile().cost_analysis()
    counted = 2 * (counts.read_flops(size, 8) + counts.head_flops(size, 8))
    assert counted == pytest.approx(analysis["flops"], rel=0.12)
    assert counted < analysis["flops"]
