"""A critic on the actor's backbone: one gradient, two optimizers, one checkpoint."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from zootomy.clusters import OptimizerConfig
from zootomy.clusters.naming import named_leaves
from zootomy.models import LoraConfig, PolicyWithValue, add_adapters, has_adapters, token_logps
from zootomy.registry import ZootomyError
from zootomy.rollout import RolloutConfig

SGD = OptimizerConfig(name="sgd", learning_rate=1.0, max_grad_norm=None)
HEAD = OptimizerConfig(name="sgd", learning_rate=0.5, max_grad_norm=None)
ROLLOUT = RolloutConfig(max_prompt_tokens=6, max_new_tokens=5, max_slots=8)
# Micro-batches of every kind: one a sequence, some packed, all at once.
SHAPES = ((1, 11, 1), (2, 13, 3), (4, 30, 4))


def both(outputs, batch, coefficients):
    """-Σ w logp + 0.3 Σ w (V - 1)²."""
    del coefficients
    weights = batch["weights"]
    there = weights > 0
    policy = -jnp.sum(jnp.where(there, weights * outputs.logp, 0.0))
    value = jnp.sum(jnp.where(there, weights * (outputs.values - 1) ** 2, 0.0))
    return policy + 0.3 * value, {"actions": (there.sum(), 1.0)}


def make(kit, shape=SHAPES[1], head=None, **options):
    """A cluster whose value head says something."""
    given = {"optimizer": SGD, "critic": "shared", "critic_optimizer": HEAD, **options}
    cluster = kit.cluster(*shape, **given)
    kernel = jnp.linspace(-1.0, 1.0, 8)[:, None] if head is None else head
    score = cluster._actor.params["score"]
    score["kernel"] = jax.device_put(kernel, score["kernel"].sharding)
    return cluster


def params(cluster):
    return {name: np.array(x) for name, x in named_leaves(cluster._actor.params).items()}


def by_hand(kit, sequences, temperature):
    """The gradient of the same loss, a sequence at a time, without packing or a cluster."""
    model = PolicyWithValue(kit.decoder())
    model.score.kernel[...] = jnp.linspace(-1.0, 1.0, 8)[:, None]
    graph, state = nnx.split(model)
    actions = float(sequences.mask.sum())

    def loss(state):
        one, total = nnx.merge(graph, state), 0.0
        for prompt, completion in zip(sequences.prompts, sequences.completions, strict=True):
            if not len(completion):
                continue
            tokens = np.concatenate([prompt, completion])[None]
            hidden = one.policy(tokens, np.arange(tokens.size)[None])
            at = np.arange(len(prompt) - 1, tokens.size - 1)  # the state before each action
            logits = one.policy.logits(hidden)[0, at] / temperature
            logp = jax.nn.log_softmax(logits)[np.arange(len(at)), completion]
            values = (hidden[0, at].astype(jnp.float32) @ one.score.kernel[...])[:, 0]
            total += jnp.sum(-logp + 0.3 * (values - 1) ** 2) / actions
        return total

    value, gradient = jax.jit(jax.value_and_grad(loss))(state)
    return float(value), {name: np.asarray(x) for name, x in named_leaves(gradient).items()}


@pytest.fixture(scope="module")
def expected(kit, ragged):
    return by_hand(kit, ragged, 0.7)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_gradient_is_the_hand_written_one(kit, ragged, expected, shape):
    value, gradient = expected
    cluster = make(kit, shape)
    before = params(cluster)
    result = kit.update(cluster, ragged, loss=both, temperature=0.7, with_values=True)
    assert result.loss == pytest.approx(value, rel=1e-5)
    norm = np.sqrt(sum(np.sum(g**2) for g in gradient.values()))
    assert result.grad_norm == pytest.approx(norm, rel=1e-5)
    assert result.metrics["actions"][0] == 17
    after = params(cluster)
    assert after.keys() == gradient.keys()
    for name, g in gradient.items():
        # The head has the critic's learning rate, all else the actor's.
        rate = 0.5 if name == "score.kernel" else 1.0
        np.testing.assert_allclose(before[name] - after[name], rate * g, atol=2e-6, err_msg=name)
    assert (cluster.steps("actor"), cluster.steps("critic")) == (1, 1)


def test_on_a_mesh_it_is_the_same(kit, ragged, expected):
    _, gradient = expected
    cluster = make(kit, mesh="data=2,fsdp=2", axis_rules={"vocab": "none"})
    before = params(cluster)
    kit.update(cluster, ragged, loss=both, temperature=0.7, with_values=True)
    after = params(cluster)
    for name, g in gradient.items():
        rate = 0.5 if name == "score.kernel" else 1.0
        np.testing.assert_allclose(before[name] - after[name], rate * g, atol=2e-6, err_msg=name)


def test_one_pass_gives_both(kit, ragged):
    cluster = make(kit)
    found = cluster.log_probs("actor", ragged, temperature=0.7, with_values=True)
    values, final = cluster.values_with_final(ragged)
    np.testing.assert_array_equal(found["values"], values)
    np.testing.assert_array_equal(found["final_values"], final)
    alone = cluster.log_probs("actor", ragged, temperature=0.7)["logp"]
    np.testing.assert_array_equal(found["logp"], alone)
    model = kit.decoder()
    tokens = np.concatenate([ragged.prompts[1], ragged.completions[1]])[None]
    hidden = nnx.jit(lambda model: model(tokens, np.arange(tokens.size)[None]))(model)
    by_model = (np.asarray(hidden[0]) @ np.linspace(-1.0, 1.0, 8, dtype=np.float32)[:, None])[:, 0]
    np.testing.assert_allclose(values[1], by_model[4:9], atol=1e-5)
    np.testing.assert_allclose(final[1], by_model[9], atol=1e-5)
    logp = token_logps(hidden[:, 4:9], model.head_kernel(), tokens[:, 5:10], temperature=0.7)
    np.testing.assert_allclose(found["logp"][1], logp[0][0], atol=1e-5)


def test_a_step_of_the_critic_alone_changes_the_head_alone(kit, ragged):
    adam = OptimizerConfig(learning_rate=0.02, weight_decay=0.1)
    cluster = make(kit, optimizer=adam, critic_optimizer=adam)
    before, arrays = params(cluster), named_leaves(cluster._actor.params)
    loss = cluster.values(ragged)
    result = kit.update(cluster, ragged, "critic", kit.squared_values)
    weights = ragged.mask / ragged.mask.sum()
    assert result.loss == pytest.approx(float(np.sum(weights * (loss - 1) ** 2)), rel=1e-5)
    after = params(cluster)
    moved = [name for name in before if not np.array_equal(before[name], after[name])]
    # With one optimizer for both, its weight decay would move the backbone too.
    assert moved == ["score.kernel"]
    for name, array in named_leaves(cluster._actor.params).items():
        assert (array is arrays[name]) == (name != "score.kernel")
    assert (cluster.steps("actor"), cluster.steps("critic")) == (0, 1)


def test_a_restored_state_goes_on_bit_for_bit(kit, ragged):
    cosine = OptimizerConfig(learning_rate=0.02, schedule="cosine", weight_decay=0.1)
    one, other = (make(kit, optimizer=cosine, critic_optimizer=kit.adam) for _ in range(2))
    kit.update(one, ragged, "critic", kit.squared_values)
    kit.update(one, ragged, loss=both, with_values=True)
    state = one.state()
    assert set(state.arrays) == {"actor"}
    assert state.counters["steps"] == {"actor": 1, "critic": 2}
    kept = params(one)
    for cluster in (one, other):
        if cluster is other:
            cluster.restore(state)
            for name, array in params(other).items():
                np.testing.assert_array_equal(array, kept[name])
        kit.update(cluster, ragged, loss=both, with_values=True)
        kit.update(cluster, ragged, "critic", kit.squared_values)
    for name, array in params(one).items():
        np.testing.assert_array_equal(params(other)[name], array, err_msg=name)
    # Each part by its own schedule: the head's third step of ten, in a line, by its optimizer.
    assert one.learning_rate("critic") == pytest.approx(0.02 * (1 - 3 / 10))
    assert one.learning_rate("actor") == pytest.approx(0.02 * (1 + np.cos(np.pi / 10)) / 2)


def test_engine_and_reference_have_the_language_model_alone(kit, ragged):
    cluster = make(kit, engine=ROLLOUT, reference="snapshot")
    engine, reference = (
        named_leaves(tree) for tree in (cluster.engine.params, cluster._models["reference"].params)
    )
    actor = named_leaves(cluster._actor.policy_params)
    assert engine.keys() == reference.keys() == actor.keys()
    assert "score.kernel" not in actor
    for name, array in actor.items():
        assert engine[name] is array
    kit.update(cluster, ragged, loss=both, with_values=True)
    cluster.sync_weights()
    logp = cluster.log_probs("actor", ragged, temperature=1.0)["logp"]
    assert (
        np.abs(logp - cluster.log_probs("reference", ragged, temperature=1.0)["logp"]).max() > 0.1
    )
    cluster.refresh_reference()
    np.testing.assert_array_equal(
        logp, cluster.log_probs("reference", ragged, temperature=1.0)["logp"]
    )
    assert cluster.memory()["critic"] == 0  # all of it is the actor's


def test_adapters_and_the_head_are_trained_and_the_backbone_stays(kit, ragged):
    adapted = add_adapters(
        kit.decoder(), LoraConfig(rank=2, pattern=r".*\.q_proj"), rngs=nnx.Rngs(3)
    )
    cluster = make(kit, actor=adapted, engine=ROLLOUT, reference="snapshot")
    layer = "layers.0.self_attn.q_proj"
    names = {f"policy.{layer}.lora_a", f"policy.{layer}.lora_b", "score.kernel"}
    before = params(cluster)
    assert set(before) == names
    for _ in range(2):
        kit.update(cluster, ragged, loss=both, with_values=True)
    after = params(cluster)
    assert all(not np.array_equal(before[name], after[name]) for name in names)
    cluster.sync_weights()
    assert has_adapters(cluster.model("actor"))
    assert set(named_leaves(cluster._models["reference"].params)) == {
        f"{layer}.lora_a", f"{layer}.lora_b"
    }  # fmt: skip


def test_offloaded_between_its_turns_it_learns_the_same(kit, ragged, expected):
    _, gradient = expected
    cluster = make(kit, offload_to_cpu=("actor",), reference="snapshot")
    before = params(cluster)
    cluster.log_probs("reference", ragged, temperature=1.0)
    cluster.values(ragged)
    cluster.log_probs("reference", ragged, temperature=1.0)
    kit.update(cluster, ragged, loss=both, temperature=0.7, with_values=True)
    for name, array in params(cluster).items():
        rate = 0.5 if name == "score.kernel" else 1.0
        np.testing.assert_allclose(
            before[name] - array, rate * gradient[name], atol=2e-6, err_msg=name
        )


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"critic": "own"},
            "critic must be a model, 'shared' or None, got 'own'.",
        ),
        (
            {"critic_optimizer": None},
            "A critic and critic_optimizer go together; give both or neither.",
        ),
        (
            {"role_to_mesh": {"critic": "data=1"}},
            "cluster.role_to_mesh.critic has no effect: the critic is a head on the actor's "
            "backbone, and lives where the actor does. Leave it out, or give the critic a model "
            "of its own.",
        ),
    ],
)
def test_what_cannot_be_is_refused(kit, options, message):
    with pytest.raises(ZootomyError) as caught:
        kit.cluster(**{"optimizer": SGD, "critic": "shared", "critic_optimizer": HEAD, **options})
    assert str(caught.value) == message


def test_an_actor_without_a_value_head_gives_no_values(kit, ragged):
    cluster = kit.cluster()
    message = "The actor gives no values; make the cluster with critic='shared'."
    with pytest.raises(ZootomyError, match=message):
        kit.update(cluster, ragged, loss=both, with_values=True)
    with pytest.raises(ZootomyError, match=message):
        cluster.log_probs("actor", ragged, temperature=1.0, with_values=True)


def test_a_schedule_that_has_ended_is_said_of_its_part(kit, ragged):
    cluster = make(kit, critic_optimizer=kit.adam, critic_steps=1)
    kit.update(cluster, ragged, "critic", kit.squared_values)
    with pytest.raises(ZootomyError, match=r"^The critic's schedule was planned for 1 optimizer"):
        kit.update(cluster, ragged, loss=both, with_values=True)
