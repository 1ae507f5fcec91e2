"""Log-probabilities, values and gradients do not depend on rows, packing or micro-batches."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from zootomy import ZootomyError
from zootomy.clusters import ModelOutputs, NonFiniteError, OptimizerConfig, Role, Sequences, passes
from zootomy.clusters.outputs import Wanted
from zootomy.clusters.passes import merge_metrics
from zootomy.clusters.programs import accumulate, forward
from zootomy.clusters.trained import TrainedModel
from zootomy.models import Decoder

# (micro_rows, row_length, sequences_per_row): many micro-batches and one, packed and not, rows
# that just fit, slots that stay empty. In the last a row has 3 slots of 5 actions but 12 tokens:
# there the head runs on whole rows, else on the actions alone.
SHAPES = [(1, 10, 1), (2, 21, 4), (8, 12, 3)]


def by_hand(model, sequences, temperature):
    """Results `[N, T]` from one sequence a row, with plain logits: no packing, no chunks."""
    tokens = np.zeros((len(sequences), 12), np.int32)
    index = np.zeros((len(sequences), sequences.width), np.int32)
    for n, (prompt, completion) in enumerate(
        zip(sequences.prompts, sequences.completions, strict=True)
    ):
        tokens[n, : len(prompt) + len(completion)] = np.concatenate([prompt, completion])
        index[n, : len(completion)] = np.arange(len(completion)) + len(prompt) - 1
    return at_actions(model, tokens, index, sequences.tokens, sequences.mask, temperature)


@nnx.jit  # one program; uncompiled, each operation would be one
def at_actions(model, tokens, index, actions, mask, temperature):
    positions = jnp.broadcast_to(jnp.arange(12), tokens.shape)
    out = jnp.stack([x[i] for x, i in zip(model(tokens, positions), index, strict=True)])
    if out.ndim == 2:
        return out * mask
    logs = jax.nn.log_softmax(model.logits(out) / temperature)
    logp = jnp.take_along_axis(logs, actions[..., None], axis=-1)[..., 0]
    return logp * mask, -jnp.sum(jnp.exp(logs) * logs, axis=-1) * mask


def gradient(kit, cluster, sequences, role="actor", loss=None, weights=None):
    """The gradient by leaf, and the loss."""
    weights = sequences.mask / max(1.0, sequences.mask.sum()) if weights is None else weights
    total, _ = cluster._passes.gradient(
        cluster._models[role],
        cluster._passes._pack(sequences, cluster._passes._update_shapes),
        {"weights": weights},
        loss or kit.weighted_logp,
        temperature=0.7,
        coefficients={"scale": 1.0},
        wanted=Wanted(values=role == "critic"),
    )
    return jax.device_get(jax.tree.leaves(total.gradients)), float(total.loss)


def log_probs(cluster, sequences):
    """With the entropy, so that all tests share a program."""
    return cluster.log_probs("actor", sequences, temperature=0.7, with_entropy=True)


def assert_same(ours, theirs):
    """Equal to 1e-6 of the largest entry, and to a few roundings of float32."""
    scale = max(1.0, *(np.abs(leaf).max() for leaf in theirs[0]))
    for one, other in zip(ours[0], theirs[0], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6 * scale, rtol=2e-6)
    assert ours[1] == pytest.approx(theirs[1], rel=1e-6)


@pytest.fixture(scope="module")
def clusters(kit):
    return [
        kit.cluster(rows, length, per_row, critic=kit.critic(), critic_optimizer=OptimizerConfig())
        for rows, length, per_row in SHAPES
    ]


def test_log_probs_equal_one_sequence_at_a_time(kit, clusters, ragged):
    logp, entropy = by_hand(kit.decoder(), ragged, 0.7)
    for cluster in clusters:
        found = log_probs(cluster, ragged)
        np.testing.assert_allclose(found["logp"], logp, atol=1e-5)
        np.testing.assert_allclose(found["entropy"], entropy, atol=1e-5)
        assert not found["logp"][ragged.mask == 0].any()


def test_values_are_of_the_state_before_each_action(kit, clusters, ragged):
    values = by_hand(kit.critic(), ragged, 1.0)
    # One token more, and the state after the last action is the one before it: its "final" value.
    longer = Sequences(ragged.prompts, [np.append(c, 0) for c in ragged.completions], 6)
    after = np.asarray(by_hand(kit.critic(), longer, 1.0))
    final = np.where(ragged.lengths > 0, after[np.arange(7), ragged.lengths], 0.0)
    for cluster in clusters:
        found, found_final = cluster.values_with_final(ragged)
        np.testing.assert_allclose(found, values, atol=1e-5)
        np.testing.assert_allclose(found_final, final, atol=1e-5)
        np.testing.assert_array_equal(cluster.values(ragged), found)


def test_gradient_equals_that_of_plain_arrays(kit, clusters, ragged):
    graph, params, rest = nnx.split(kit.decoder(), nnx.Param, ...)

    def plain(params):
        logp, _ = by_hand(nnx.merge(graph, params, rest), ragged, 0.7)
        return -logp.sum() / 17

    loss, grads = jax.jit(jax.value_and_grad(plain))(params)
    expected = jax.device_get(jax.tree.leaves(grads)), float(loss)
    for cluster in clusters:
        assert_same(gradient(kit, cluster, ragged), expected)


def test_critic_gradient_is_the_same_in_any_shape(kit, clusters, ragged):
    first, *others = (
        gradient(kit, cluster, ragged, "critic", kit.squared_values) for cluster in clusters[1:]
    )
    assert first[1] > 0
    for other in others:
        assert_same(first, other)


@settings(max_examples=10)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)), min_size=1, max_size=6),
    seed=st.integers(0, 99),
)
def test_any_lengths_any_shape_one_gradient(kit, clusters, lengths, seed):
    sequences = kit.sequences(*zip(*lengths, strict=True), seed=seed)
    # Weights of no pattern: whatever an aggregation computes, it is carried through.
    weights = np.random.default_rng(seed).random(sequences.mask.shape) * sequences.mask / 7
    first, *others = (gradient(kit, cluster, sequences, weights=weights) for cluster in clusters)
    for other in others:
        assert_same(first, other)


def test_a_neighbour_in_the_row_changes_nothing(kit, clusters):
    mine, other = [[1, 2], [3, 4, 5]], [[9, 9, 9, 9], [8]]
    for cluster in clusters[1:]:
        found = []
        for prompt, completion in (other, [[1, 0, 7, 2], [4]]):
            sequences = Sequences([mine[0], prompt], [mine[1], completion], kit.width)
            found.append(log_probs(cluster, sequences)["logp"])
        np.testing.assert_array_equal(found[0][0], found[1][0])
        assert (found[0][1] != found[1][1]).any()


def test_entries_past_the_end_and_the_logp_before_the_update(kit, clusters, ragged):
    def everything(outputs, batch, coefficients):
        # Reads what lies past the ends too; and compares with what was said before the update.
        weights = jnp.where(batch["weights"] == 0, 1.0, batch["weights"])
        gap = jnp.max(jnp.abs(outputs.logp - batch["old_logp"]))
        return -(outputs.logp * weights).sum(), {"gap": (gap, 1.0)}

    old = log_probs(clusters[0], ragged)["logp"]
    batch = {"weights": ragged.mask / 17, "old_logp": old}
    for cluster in clusters[1:]:
        micros = cluster._passes._pack(ragged, cluster._passes._update_shapes)
        options = {"temperature": 0.7, "coefficients": None, "wanted": Wanted()}
        model = cluster._models["actor"]
        total, results = cluster._passes.gradient(model, micros, batch, everything, **options)
        found = jax.device_get(jax.tree.leaves(total.gradients)), float(total.loss)
        assert_same(found, gradient(kit, cluster, ragged))
        assert max(float(metrics["gap"][0]) for _, metrics in results) < 1e-5


def test_one_program_a_pass_whatever_the_batch(kit, ragged):
    cluster = kit.cluster(3, 13, 2)
    cluster.log_probs("actor", ragged, temperature=0.7)
    kit.update(cluster, ragged, temperature=0.7)
    # Programs of models that other tests have let go of may leave the caches meanwhile.
    compiled = accumulate.jitted._cache_size(), forward.jitted._cache_size()
    for indices in ([0], [1, 2, 3], range(7), []):
        sequences = ragged.take(indices)
        for temperature in (0.5, 1.0):
            cluster.log_probs("actor", sequences, temperature=temperature)
            kit.update(cluster, sequences, temperature=temperature, scale=temperature)
    assert accumulate.jitted._cache_size() <= compiled[0]
    assert forward.jitted._cache_size() <= compiled[1]


def test_the_step_is_compiled_once_and_ahead(kit, ragged, compiled):
    cluster = kit.cluster(optimizer=OptimizerConfig(name="sgd", learning_rate=0.123))
    cluster.compile_steps()
    assert compiled.count("jit(_step)") == 1
    compiled.clear()
    cluster.compile_steps()
    assert compiled == []
    # The first parameters are the given model's too; those of the second step are nobody's.
    for _ in range(2):
        kit.update(cluster, ragged)
    assert "jit(_step)" not in compiled


def test_an_optimizer_begins_with_one_program(kit, compiled):
    actor = kit.decoder()
    optimizer = OptimizerConfig(name="adamw", learning_rate=0.0123)
    compiled.clear()
    kit.cluster(actor=actor, optimizer=optimizer)
    assert compiled == ["jit(first_state)"]  # an array at a time, it was one program a shape
    kit.cluster(actor=actor, optimizer=optimizer)
    assert compiled == ["jit(first_state)"]


@pytest.mark.parametrize("mesh", ["data=1", "data=2", "fsdp=2"])
def test_a_single_micro_batch_needs_no_sum(kit, ragged, monkeypatch, mesh):
    made = []
    make = TrainedModel.zeros
    monkeypatch.setattr(TrainedModel, "zeros", lambda self: made.append(self) or make(self))
    several, one = kit.cluster(2, 10, 1, mesh=mesh), kit.cluster(8, 12, 3, mesh=mesh)
    summed = gradient(kit, several, ragged)
    assert len(made) == 1
    assert_same(gradient(kit, one, ragged), summed)
    assert len(made) == 1


def test_work_beside_an_update_is_done_once_before_the_host_waits_for_it(kit, ragged, monkeypatch):
    order = []

    def told(name, function):
        def call(*arguments, **named):
            order.append(name)
            return function(*arguments, **named)

        return call

    cluster = kit.cluster(1, 10, 1)  # a sequence a micro-batch: six with an action
    monkeypatch.setattr(passes, "accumulate", told("accumulate", passes.accumulate))
    monkeypatch.setattr(cluster._actor, "step", told("step", cluster._actor.step))
    kit.update(cluster, ragged, beside=lambda: order.append("beside"))
    assert order == ["accumulate"] * 6 + ["beside", "step"]

    def fails():
        raise ValueError("beside")

    before = jax.tree.map(np.asarray, cluster._actor.params)
    with pytest.raises(ValueError, match="beside"):
        kit.update(cluster, ragged, beside=fails)
    jax.tree.map(np.testing.assert_array_equal, cluster._actor.params, before)
    assert cluster.steps("actor") == 1


def test_update_descends_and_reports(kit, ragged):
    cluster = kit.cluster(optimizer=kit.adam)
    results = [kit.update(cluster, ragged, temperature=0.7) for _ in range(10)]
    assert results[-1].loss < results[0].loss - 0.1
    np.testing.assert_allclose([r.lr for r in results[:3]], [0.02, 0.018, 0.016], rtol=1e-6)
    assert results[0].metrics["actions"] == (17.0, results[0].micro_batches)
    assert cluster.steps("actor") == 10
    with pytest.raises(ZootomyError, match="planned for 10 optimizer steps, and all were taken"):
        kit.update(cluster, ragged)


def test_grad_norm_is_that_before_clipping(kit, ragged):
    plain = kit.update(kit.cluster(), ragged, scale=10.0)
    clipping = OptimizerConfig(name="sgd", learning_rate=1.0, max_grad_norm=0.1)
    cluster = kit.cluster(optimizer=clipping)
    before = jax.tree.leaves(cluster.state().arrays["actor"]["params"])
    clipped = kit.update(cluster, ragged, scale=10.0)
    after = jax.tree.leaves(cluster.state().arrays["actor"]["params"])
    moved = np.sqrt(sum(float(jnp.sum((a - b) ** 2)) for a, b in zip(after, before, strict=True)))
    assert clipped.grad_norm == plain.grad_norm > 1
    assert moved == pytest.approx(0.1, rel=1e-4)


def test_bfloat16_weights_have_float32_moments_from_the_first_step_on(kit, ragged):
    # Moments that begin in bfloat16 and end in float32 could not be restored into a new run.
    actor = Decoder(kit.config, rngs=nnx.Rngs(0), dtype=jnp.bfloat16, param_dtype=jnp.bfloat16)
    cluster = kit.cluster(actor=actor, optimizer=kit.adam)
    before = jax.tree.map(lambda leaf: leaf.dtype, cluster.state().arrays)
    first = kit.update(cluster, ragged, temperature=0.7)
    second = kit.update(cluster, ragged, temperature=0.7)
    assert second.loss < first.loss
    assert jax.tree.map(lambda leaf: leaf.dtype, cluster.state().arrays) == before
    floats = {leaf.dtype for leaf in jax.tree.leaves(cluster.state().arrays["actor"]["optimizer"])}
    assert floats == {jnp.dtype("float32"), jnp.dtype("int32")}
    assert cluster.model("actor").embed_tokens.embedding[...].dtype == jnp.bfloat16


def test_metrics_are_weighted_and_weight_zero_says_nothing():
    # 3 clipped of 12 and 3 of 4: the mean of the means would be .5, right is 6/16.
    parts = [{"clip": (3.0, 12)}, {"clip": (3.0, 4)}, {"clip": (np.nan, 0.0)}]
    assert merge_metrics(parts) == {"clip": (6.0, 16.0)}


def test_nothing_that_is_not_finite_reaches_the_weights(kit, ragged):
    cluster = kit.cluster(1, 10, 1)
    kit.update(cluster, ragged, scale=0.01)
    before = jax.device_get(cluster.state().arrays)
    outcome = "The step was not taken and no weights were changed."

    weights = ragged.mask.copy()
    weights[2, 1] = np.inf
    with pytest.raises(NonFiniteError) as error:
        cluster.update(
            "actor", ragged, {"weights": weights}, kit.weighted_logp, coefficients={"scale": 1.0}
        )
    assert str(error.value) == (
        "The loss is inf (actor, optimizer step 1), in the micro-batch of the sequences [2]. "
        + outcome
    )

    with pytest.raises(NonFiniteError) as error:
        kit.update(cluster, ragged, scale=1e30)  # squares of 1e30 are above 3e38
    assert str(error.value) == (
        "The gradient's norm overflows float32 (actor, optimizer step 1), although every "
        "gradient is finite. " + outcome
    )

    with pytest.raises(NonFiniteError) as error:
        cluster.update("actor", ragged, {}, kit.nan_gradient)
    assert str(error.value) == (
        "The gradient of 'embed_tokens.embedding' is not finite (12 of 12 parameters; actor, "
        "optimizer step 1), although the loss is 0. " + outcome
    )
    jax.tree.map(np.testing.assert_array_equal, before, jax.device_get(cluster.state().arrays))
    assert cluster.steps("actor") == 1


def test_wrong_calls(kit, ragged):
    cluster = kit.cluster()
    other = Sequences([[1, 11]], [[1]], kit.width)
    for call, message in [
        (
            lambda: cluster.log_probs("critic", ragged, temperature=1.0),
            "The critic gives no log-probabilities; ask actor or reference.",
        ),
        (
            lambda: cluster.log_probs("reference", ragged, temperature=1.0),
            "This cluster has no reference; it has actor. Give one when the cluster is made.",
        ),
        (
            lambda: cluster.log_probs("actr", ragged, temperature=1.0),
            "Unknown role 'actr'. Did you mean 'actor'? Known: actor, critic, reference, reward, "
            "rollout.",
        ),
        (
            lambda: cluster.log_probs("actor", ragged, temperature=0.0),
            "temperature must be positive, got 0.0; greedy tokens are scored at 1.",
        ),
        (
            lambda: cluster.log_probs("actor", other, temperature=1.0),
            "Sequence 0 holds the token 11, which is outside the vocabulary 0..10; is the "
            "tokenizer the model's?",
        ),
        (
            lambda: cluster.update("actor", ragged, {"a": np.zeros((6, 2))}, kit.weighted_logp),
            "The batch entry 'a' has shape (6, 2); its first axis must be the 7 sequences.",
        ),
        (cluster.sync_weights, "This cluster has no rollout engine; give one when it is made."),
    ]:
        with pytest.raises(ZootomyError) as error:
            call()
        assert str(error.value) == message


def test_outputs_are_named():
    assert ModelOutputs().logp is None
    assert Role.ACTOR == "actor"
