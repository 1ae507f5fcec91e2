"""A reward model as a role: scores of whole sequences, packed or not."""

import jax
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
    score = nnx.jit(lambda model, tokens, last: model(tokens, np.arange(9)[None], last))
    for n, (prompt, completion) in enumerate(
        zip(sequences.prompts, sequences.completions, strict=True)
    ):
        # What comes after its last token is not seen; one width is one program.
        length = len(prompt) + len(completion)
        tokens = np.full((1, 9), VOCABULARY - 1)
        tokens[0, :length] = np.concatenate([prompt, completion])
        alone = score(model, tokens, np.array([length - 1]))
        # A sequence without a completion has nothing to score.
        expected = float(alone[0]) if len(completion) else 0.0
        np.testing.assert_allclose(scores[n], expected, rtol=1e-5, atol=1e-5)


def test_several_models_each_on_a_mesh_and_in_a_dtype_of_its_own():
    rng = np.random.default_rng(1)
    sequences = Sequences(
        [rng.integers(0, VOCABULARY, p) for p in (3, 1)],
        [rng.integers(0, VOCABULARY, c) for c in (2, 5)],
        width=5,
    )
    kind, safe = reward_model(), reward_model()
    safe.score.kernel.set_value(-2 * safe.score.kernel[...])
    both = cluster(
        {"kind": kind, "safe": safe},
        role_to_mesh={"reward": "data=1@1", "reward.safe": "data=2@2"},
        role_to_dtype={"reward.kind": "bfloat16"},
        axis_rules={"reward.safe.vocab": "none"},
    )
    assert both.reward_models == ("kind", "safe")
    assert both.roles == ("actor", "reward")
    alone = cluster(reward_model())
    assert alone.reward_models == ("reward_model",)
    expected = alone.scores(sequences)
    np.testing.assert_allclose(both.scores(sequences, "safe"), -2 * expected, rtol=1e-5)
    rounded = both.scores(sequences, "kind")
    assert np.abs(rounded - expected).max() > 1e-5
    np.testing.assert_allclose(rounded, expected, atol=0.1)
    # "reward" speaks of all that have no mesh of their own.
    placed = {seat: both._models[seat].params for seat in ("reward.kind", "reward.safe")}
    devices = {
        seat: sorted({d.id for leaf in jax.tree.leaves(params) for d in leaf.devices()})
        for seat, params in placed.items()
    }
    assert devices == {"reward.kind": [1], "reward.safe": [2, 3]}
    assert set(both.memory()) == {"actor", "reward.kind", "reward.safe"}
    assert set(both.state().arrays) == {"actor"}
    with pytest.raises(ZootomyError) as caught:
        both.scores(sequences)
    assert str(caught.value) == (
        "This cluster has no reward.reward_model; it has actor, reward.kind, reward.safe. Give one "
        "when the cluster is made."
    )


def test_settings_of_a_reward_model_that_is_not_there_are_refused():
    config = ClusterConfig(role_to_mesh={"reward.safe": "data=1"})
    config.check_roles(("actor", "reward.safe"))
    with pytest.raises(ZootomyError) as caught:
        config.check_roles(("actor", "reward.kind"))
    assert str(caught.value) == (
        "cluster.role_to_mesh.reward.safe has no effect: this run has no reward.safe, only actor, "
        "reward.kind. Leave it out, or choose an algorithm that has one."
    )


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
