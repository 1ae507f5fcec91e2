"""The engine samples from the actor's weights, and says of its tokens what the trainer says."""

import numpy as np
import pytest
from zootomy.clusters import ClusterConfig, OptimizerConfig, Sequences, cast
from zootomy.rollout import Request, RolloutConfig, SamplingParams, make_engine

REQUESTS = [Request((1, 2, 3, 4), n=2), Request((5,), n=3)]


@pytest.fixture(scope="module")
def cluster(kit):
    limits = RolloutConfig(max_prompt_tokens=6, max_new_tokens=kit.width)
    # Made over other weights: the cluster gives the engine the actor's before anything else.
    engine = make_engine(limits, kit.decoder(seed=5))
    return kit.cluster(actor=kit.decoder(), engine=engine)


def rollout_gap(kit, cluster):
    """Largest difference between what the engine and the actor say of sampled tokens."""
    sampling = SamplingParams(temperature=0.7, max_new_tokens=kit.width, stop_ids=(0, 9))
    groups = cluster.generate(REQUESTS, sampling, seed=3)
    flat = [completion for group in groups for completion in group]
    prompts = [request.prompt for request in REQUESTS for _ in range(request.n)]
    sequences = Sequences(prompts, [completion.tokens for completion in flat], kit.width)
    logp = cluster.log_probs("actor", sequences, temperature=0.7, with_entropy=True)["logp"]
    found = np.zeros_like(logp)
    for row, completion in zip(found, flat, strict=True):
        row[: len(completion.logp)] = completion.logp
    assert {completion.version for completion in flat} == {cluster.version}
    return np.abs(found - logp).max()


def test_rollout_logp_is_the_actors_before_and_after_a_sync(kit, cluster, ragged):
    assert rollout_gap(kit, cluster) < 1e-4
    kit.update(cluster, ragged, temperature=0.7)
    # Between an update and the sync the engine samples from what it was given, which still exists.
    assert rollout_gap(kit, cluster) > 1e-2
    assert cluster.sync_weights() == 1
    assert rollout_gap(kit, cluster) < 1e-4


def test_an_engine_is_told_the_mesh_of_the_rollout(monkeypatch, kit):
    """Engines of other processes take their parallel sizes from it."""
    told = {}
    monkeypatch.setattr(cast, "make_engine", lambda config, model, **given: told.update(given))
    config = ClusterConfig(
        role_to_mesh={"rollout": "data=2,tensor=2@2"}, axis_rules={"vocab": "none"}
    )
    model = kit.decoder()
    actor = cast.make_actor(config, model, OptimizerConfig(learning_rate=1e-3), 1)
    cast.make_rollout(config, actor, RolloutConfig())
    assert told == {"mesh": {"data": 2, "fsdp": 1, "tensor": 2, "sequence": 1}}
