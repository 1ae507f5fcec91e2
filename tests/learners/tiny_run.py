"""A learner on the smallest of models, with an engine that samples at random."""

import dataclasses

from flax import nnx
from zootomy import Cluster, ClusterConfig, Learner, RolloutConfig, algorithm
from zootomy.clusters import OptimizerConfig
from zootomy.learners import BatchConfig
from zootomy.models import Decoder, ModelConfig, ValueModel

VOCAB, WIDTH = 12, 3
TINY = ModelConfig(
    vocab_size=VOCAB, hidden_size=8, intermediate_size=16, num_layers=1, num_heads=2,
    num_kv_heads=1, head_dim=4, initializer_range=0.5,
)  # fmt: skip
ADAM = OptimizerConfig(learning_rate=0.02)
ROLLOUT = RolloutConfig(max_prompt_tokens=4, max_new_tokens=WIDTH)


def share(prompts, completions):
    """In 0..1, different within a group."""
    return [sum(map(int, text or "0")) / (9 * WIDTH) for text in completions]


def make_learner(task_of, engine_of, name, *, changes=None, function=share, rewards=None, rows=8,
                 length=8, per_row=1, mesh="data=1", rules=None, full=4, mini=None,
                 epochs=1, group=2, learning=None, offload=(), **options):  # fmt: skip
    """A learner by an algorithm or its name, with a cluster that has what it needs.

    `learning` are further arguments of the learner, `options` those of the cluster.
    """
    chosen = algorithm(name) if isinstance(name, str) else name
    chosen = chosen.override(changes or {})
    batch = BatchConfig(full=full, mini=mini, group_size=group, epochs=epochs)
    given = {"optimizer": ADAM, "total_steps": 20 * batch.updates}
    actor = Decoder(TINY, rngs=nnx.Rngs(0))
    if "reference" in chosen.needs:
        given["reference"] = "snapshot"
    if chosen.value_loss is not None:
        critic = ValueModel.from_decoder(actor, rngs=nnx.Rngs(1))
        given |= {"critic": critic, "critic_optimizer": ADAM}
    config = ClusterConfig(
        micro_rows=rows, row_length=length, sequences_per_row=per_row,
        mesh=mesh, axis_rules=rules or {}, offload_to_cpu=offload,
    )  # fmt: skip
    cluster = Cluster(config, **{"actor": actor, "engine": engine_of(VOCAB), **given, **options})
    task = task_of(function)
    if rewards is not None:
        task = dataclasses.replace(task, rewards=rewards)
    return Learner(chosen, task, cluster, rollout=ROLLOUT, batch=batch, **(learning or {}))
