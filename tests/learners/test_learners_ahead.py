"""The programs of the first update are compiled before it, all of them and no others."""

import gc
import weakref

import jax
import numpy as np
import pytest
import tiny_run
from zootomy import algorithm, block
from zootomy.clusters import OptimizerConfig
from zootomy.learners import BatchConfig
from zootomy.learners.stand_in import stand_in

OF_AN_UPDATE = {
    "jit(forward)", "jit(measure)", "jit(accumulate)", "jit(experience)", "jit(run)", "jit(look)",
    "jit(_step)", "jit(_step_if)",
}  # fmt: skip
VALUES = {"value_loss": "mse", "kl_placement": "none", "controller.coef": 0.0}
DISTILLATION = block("distillation", coef=3.0, estimator="full")
HEAD = {"critic": "shared", "critic_optimizer": OptimizerConfig(learning_rate=0.01)}
# Heads and MLP are spread, 12 tokens and the one head of keys are not.
WHOLE = {"rules": {"vocab": "none", "kv_heads": "none"}}
CASES = {
    "a reference": ("grpo", {}),
    "no reference": ("dr_grpo", {}),
    "two steps": ("dapo", {"mini": 2, "rows": 4}),
    "several micro-batches": ("grpo", {"rows": 2}),
    "a critic": ("ppo", {"mini": 2}),
    "values of what follows": (
        "vapo",
        {"changes": {"advantage": "gae_bootstrap", "regularizer": "none"}},
    ),
    "a critic on the actor": ("ppo", {"changes": VALUES, **HEAD}),
    "whole distributions": ("pico", {"changes": {"regularizer": DISTILLATION}}),
    "remembered rewards": ("spo", {}),
    "the greedy reward": ("remax", {}),
    "rows on two devices": ("grpo", {"mesh": "data=2"}),
    "weights on four devices": ("grpo", {**WHOLE, "mesh": "fsdp=2,tensor=2"}),
    "and several micro-batches": ("grpo", {**WHOLE, "mesh": "data=2,tensor=2", "rows": 2}),
}


def compile_ahead(learner):
    learner.compile_ahead()
    ahead = learner.cluster._passes.ahead
    ahead.wait()
    assert ahead.error is None


@pytest.mark.parametrize("case", CASES)
def test_the_first_step_compiles_nothing_of_its_update(tiny_learner, compiled, case):
    name, options = CASES[case]
    jax.clear_caches()  # Another test may have compiled the same.
    learner = tiny_learner(name, **options)
    compiled.clear()
    compile_ahead(learner)
    assert {"jit(accumulate)", "jit(experience)", "jit(_step_if)"} <= set(compiled)
    ahead = [program for program in compiled if program in OF_AN_UPDATE]
    compiled.clear()
    before = [np.array(x) for x in jax.tree.leaves(learner.cluster._actor.params)]
    learner.step()
    assert not OF_AN_UPDATE & set(compiled), ahead
    after = jax.tree.leaves(learner.cluster._actor.params)
    assert any((x != y).any() for x, y in zip(before, after, strict=True))


def test_what_is_compiled_ahead_changes_nothing(tiny_learner):
    learner, other = tiny_learner("ppo", mini=2), tiny_learner("ppo", mini=2)
    compile_ahead(learner)
    assert learner.cluster.steps("actor") == learner.cluster.steps("critic") == 0
    one, two = learner.step().metrics, other.step().metrics
    kept = [k for k in one if not k.startswith("time/") and "second" not in k]
    assert [one[k] for k in kept] == [two[k] for k in kept]


def test_models_that_wait_on_the_host_are_left_alone(tiny_learner):
    learner = tiny_learner("grpo", offload=("reference",))
    learner.compile_ahead()
    assert not learner.cluster._passes.ahead.going
    learner.step()


def test_a_batch_of_other_programs_compiles_its_own(tiny_learner, compiled):
    """Sixteen completions of up to 3 tokens may take two micro-batches; those sampled fit one."""
    jax.clear_caches()
    learner = tiny_learner("dr_grpo", full=8, rows=8, per_row=2)
    compile_ahead(learner)
    assert compiled.count("jit(accumulate)") == 1
    learner.step()
    assert compiled.count("jit(accumulate)") == 2
    learner.step()
    assert compiled.count("jit(accumulate)") == 2


def test_a_learner_that_is_gone_ends_what_is_compiled_for_it(tiny_learner):
    learner = tiny_learner("grpo")
    learner.step()
    ahead = learner.cluster._passes.ahead
    ahead.wait()
    gc.collect()
    gc.disable()  # Arrays of a device are to be freed at once, not when Python has made objects.
    gone = weakref.ref(learner), weakref.ref(learner.cluster)
    del learner
    assert [one() for one in gone] == [None, None]
    gc.enable()
    assert ahead._stop.is_set()


def test_a_batch_that_stands_in_is_the_longest():
    batch, rollout = BatchConfig(full=5, group_size=2), tiny_run.ROLLOUT
    chosen = algorithm("spo")
    found = stand_in(chosen, batch, rollout, 3, token_rewards=True)
    prompts = [group.prompt for group in found.groups]
    assert prompts == [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (1, 1, 0, 0), (0, 0, 1, 0)]
    group = found.groups[0]
    assert [len(one.tokens) for one in group.completions] == [tiny_run.WIDTH] * 2
    assert group.components.shape == (3, 2)
    assert group.valid.all()
    assert (group.baseline, group.scale) == (0.0, None)
    assert [one.shape for one in group.token_rewards] == [(tiny_run.WIDTH,)] * 2
    plain = stand_in(algorithm("grpo"), batch, rollout, 1, token_rewards=False).groups[0]
    assert (plain.baseline, plain.token_rewards) == (None, None)
