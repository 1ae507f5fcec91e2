"""Adapters in a cluster: they alone are trained, sent and saved, over one shared backbone."""

import jax
import numpy as np
import pytest
from flax import nnx
from zootomy.clusters import Checkpoints, Role
from zootomy.clusters.naming import named_leaves
from zootomy.models import LoraConfig, add_adapters, merge_adapters
from zootomy.rollout import Request, RolloutConfig, VanillaEngine

ROLLOUT = RolloutConfig(max_prompt_tokens=4, max_new_tokens=5)
REQUESTS = [Request((3, 1, 4), n=3), Request((1, 5), n=2)]


def make(kit, base="as_is"):
    plain = kit.decoder(tie_embeddings=False)
    actor = add_adapters(plain, LoraConfig(rank=2, alpha=8.0, base=base), rngs=nnx.Rngs(1))
    engine = VanillaEngine(ROLLOUT, actor)
    cluster = kit.cluster(optimizer=kit.adam, actor=actor, reference="snapshot", engine=engine)
    return plain, cluster


def sampled(cluster, seed=0):
    """Completions, the engine's log-probabilities, and the same for the trainer."""
    from zootomy.clusters import Sequences

    groups = cluster.generate(REQUESTS, ROLLOUT.sampling(), seed)
    flat = [one for group in groups for one in group]
    prompts = [request.prompt for request in REQUESTS for _ in range(request.n)]
    sequences = Sequences(prompts, [one.tokens for one in flat], ROLLOUT.max_new_tokens)
    return [one.tokens.tolist() for one in flat], np.stack([one.logp for one in flat]), sequences


def pointer(array):
    return array.addressable_data(0).unsafe_buffer_pointer()


@pytest.fixture(scope="module")
def trained(kit, ragged):
    """A cluster before and after three steps: what it sampled, and what it was sent."""
    plain, cluster = make(kit)
    before = sampled(cluster), cluster.log_probs(Role.REFERENCE, ragged, temperature=1.0)["logp"]
    backbone = {n: np.array(x) for n, x in named_leaves(cluster._actor.rest).items()}
    sent = []
    update = cluster.engine.update_weights
    cluster.engine.update_weights = lambda weights, version: (
        sent.append(set(named_leaves(weights))), update(weights, version)
    )  # fmt: skip
    for _ in range(3):
        kit.update(cluster, ragged)
        cluster.sync_weights()
    return plain, cluster, before, backbone, sent


def test_only_adapters_are_trained_sent_and_saved(trained):
    _, cluster, _, backbone, sent = trained
    names = set(named_leaves(cluster._actor.params))
    assert len(names) == 2 * 7
    assert all(name.endswith(("lora_a", "lora_b")) for name in names)
    assert sent == [names] * 3
    assert set(named_leaves(cluster.state().arrays["actor"]["params"])) == names
    moments = [x for x in jax.tree.leaves(cluster._actor.optimizer_state) if x.ndim]
    assert sum(x.size for x in moments) == 2 * sum(
        x.size for x in jax.tree.leaves(cluster._actor.params)
    )
    for name, array in named_leaves(cluster._actor.rest).items():
        np.testing.assert_array_equal(array, backbone[name], err_msg=name)
    assert all(bool((x != 0).any()) for x in jax.tree.leaves(cluster._actor.params))


def test_actor_reference_and_engine_hold_one_backbone(trained):
    plain, cluster, *_ = trained
    ours = {n: pointer(x) for n, x in named_leaves(cluster._actor.rest).items()}
    reference = named_leaves(cluster._models[Role.REFERENCE].rest)
    engine = named_leaves(cluster.engine._params)
    assert len(ours) > 9
    for name, place in ours.items():
        assert pointer(reference[name]) == place, name
        assert pointer(engine[name]) == place, name
    for name, array in named_leaves(nnx.state(plain, nnx.Param)).items():
        assert pointer(array) == ours[name], name
    # The engine's adapters are the actor's too.
    for name, array in named_leaves(cluster._actor.params).items():
        assert pointer(engine[name]) == pointer(array), name


def test_a_step_changes_what_is_sampled_and_counts_once(trained, ragged):
    _, cluster, ((tokens, _, _), reference), *_ = trained
    after, logp, sequences = sampled(cluster)
    assert after != tokens
    trainer = cluster.log_probs(Role.ACTOR, sequences, temperature=1.0)["logp"]
    np.testing.assert_allclose(logp, trainer, atol=2e-5)
    # As the merged model has it, in which the delta stands once.
    merged = merge_adapters(cluster.model(Role.ACTOR))
    other = VanillaEngine(ROLLOUT, merged).generate(REQUESTS, ROLLOUT.sampling(), 0)
    assert [one.tokens.tolist() for group in other for one in group] == after
    # The reference is the backbone, before and after.
    still = cluster.log_probs(Role.REFERENCE, ragged, temperature=1.0)["logp"]
    np.testing.assert_array_equal(still, reference)
    moved = cluster.log_probs(Role.ACTOR, ragged, temperature=1.0)["logp"]
    assert np.abs(moved - reference).max() > 0.01


def test_an_engine_without_adapters_is_sent_the_merged_weights(kit, ragged, trained):
    plain, cluster, *_ = trained
    engine = VanillaEngine(ROLLOUT, plain)
    assert not engine.adapted
    mine, cluster.engine = cluster.engine, engine
    try:
        cluster.sync_weights()
        there, _, _ = sampled(cluster)
    finally:
        cluster.engine = mine
    assert there == sampled(cluster)[0]


def test_a_checkpoint_of_adapters_goes_on_as_if_nothing_had_happened(kit, ragged, tmp_path):
    _, straight = make(kit)
    kit.update(straight, ragged)
    with Checkpoints(tmp_path) as checkpoints:
        state = straight.state()
        checkpoints.save(1, state.arrays, {"cluster": state.counters})
        kit.update(straight, ragged)
        _, again = make(kit)
        arrays, record = checkpoints.restore(again.state().arrays)
    again.restore(type(state)(arrays, record["cluster"]))
    kit.update(again, ragged)
    ours, theirs = (named_leaves(c.state().arrays) for c in (straight, again))
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)


def test_over_four_bits(kit, ragged):
    _, cluster = make(kit, base="nf4")
    before = sampled(cluster)[0]
    for _ in range(3):
        kit.update(cluster, ragged)
    cluster.sync_weights()
    after, logp, sequences = sampled(cluster)
    assert after != before
    trainer = cluster.log_probs(Role.ACTOR, sequences, temperature=1.0)["logp"]
    np.testing.assert_allclose(logp, trainer, atol=2e-5)
    assert not any("kernel" in n and "proj" in n for n in named_leaves(cluster.engine._params))


def test_a_dtype_leaves_adapters_and_weights_in_few_bits_as_they_are(kit):
    actor = add_adapters(kit.decoder(), LoraConfig(rank=2, base="nf4"), rngs=nnx.Rngs(1))
    cluster = kit.cluster(actor=actor, role_to_dtype={"actor": "bfloat16"})
    kinds = {name: x.dtype for name, x in named_leaves(nnx.state(cluster.model("actor"))).items()}
    assert kinds["embed_tokens.embedding"] == kinds["norm.scale"] == "bfloat16"
    projection = "layers.0.mlp.up_proj"
    assert kinds[f"{projection}.lora_a"] == kinds[f"{projection}.lora_b"] == "float32"
    # Rounded scales would change every weight of their tile.
    assert kinds[f"{projection}.base.value.scale"] == "float32"
    assert kinds[f"{projection}.base.value.qvalue"] == "uint4"
