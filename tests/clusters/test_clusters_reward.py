"""A reward model as a role: scores of whole sequences, packed or not."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from zootomy.clusters import Cluster, ClusterConfig, OptimizerConfig, Sequences
from zootomy.models import RewardModel, make_model
from zootomy.registry import ZootomyError

VOCABULARY = 17


def reward_model() -> RewardModel:
    model = RewardModel.from_decoder(
        make_model("tiny", vocab_size=VOCABULARY, seed=3), rngs=nnx.Rngs(0)
    )
    kernel = np.random.default_rng(0).normal(size=model.score.kernel.shape).astype(np.float32)
    model.score.kernel.set_value(jnp.asarray(kernel))
    return model


def cluster(reward, **sizes) -> Cluster:
    return Cluster(
        ClusterConfig(**sizes),
        actor=make_model("tiny", vocab_size=VOCABULARY),
        optimizer=OptimizerConfig(),
        total_steps=1,
        max_tokens=9,
        reward=reward,
    )


def test_scores_are_those_of_each_sequence_alone():
    rng = np.random.default_rng(1)
    lengths = [(3, 2), (1, 5), (4, 1), (2, 0), (2, 5)]
    sequences = Sequences(
        [rng.integers(0, VOCABULARY, p) for p, _ in lengths],
        [rng.integers(0, VOCABULARY, c) for _, c in lengths],
        width=5,
    )
    model = reward_model()
    scores = cluster(model, micro_rows=2, sequences_per_row=3).scores(sequences)
    for n, (prompt, completion) in enumerate(
        zip(sequences.prompts, sequences.completions, strict=True)
    ):
        tokens = np.concatenate([prompt, completion])[None]
        alone = model(tokens, np.arange(tokens.size)[None], np.array([tokens.size - 1]))
        # A sequence without a completion has nothing to score.
        expected = float(alone[0]) if len(completion) else 0.0
        np.testing.assert_allclose(scores[n], expected, rtol=1e-5, atol=1e-5)


def test_the_reward_model_is_in_no_checkpoint():
    assert set(cluster(reward_model()).state().arrays) == {"actor"}


def test_a_reward_model_of_another_tokenizer_is_refused():
    other = RewardModel.from_decoder(make_model("tiny", vocab_size=5), rngs=nnx.Rngs(0))
    with pytest.raises(ZootomyError) as caught:
        cluster(other)
    assert str(caught.value) == (
        "The reward model has a vocabulary of 5 tokens, the actor of 17; "
        "they must share a tokenizer."
    )
