"""A block of one's own: a policy loss in a user's file, used from Python and on the command line.

From Python, this file shows the ways to use it and trains two steps:

    python examples/custom_block.py

On the command line, the file is a plug-in and the block has a name like any other:

    zootomy show policy_loss.weighted_reinforce --plugin examples/custom_block.py
    zootomy train --plugin examples/custom_block.py --algorithm dr_grpo \\
        --policy_loss weighted_reinforce --policy_loss.positive 0.5
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import zootomy
from zootomy.blocks import TokenLoss
from zootomy.blocks.masking import masked


@zootomy.register("policy_loss", "weighted_reinforce", paper="arXiv:2506.01347")
def weighted_reinforce(log_ratio, advantages, logp, old_logp, mask, *, positive: float = 0.1):
    """Good answers push less than bad ones, so that the policy keeps its variety.

        loss = −w r A,   w = positive where A > 0, else 1,   r = exp(log_ratio)

    The paper has rewards of ±1 in place of advantages.
    """
    advantages = jax.lax.stop_gradient(masked(advantages, mask))
    good = advantages > 0
    ratio = jnp.exp(masked(log_ratio, mask))
    loss = -jnp.where(good, positive, 1.0) * ratio * advantages
    return TokenLoss(loss, {"good_share": masked(good, mask)})


def by_hand() -> jax.Array:
    """The bare function on arrays: two completions of three tokens, the first one token shorter."""
    function = zootomy.get("policy_loss", "weighted_reinforce")
    logp = jnp.log(jnp.array([[0.5, 0.5, 1.0], [0.5, 0.5, 0.5]]))
    mask = jnp.array([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    advantages = jnp.array([[2.0, 2.0, 0.0], [-1.0, -1.0, -1.0]])
    # r = 1: a good action has −0.5 · 2 = −1, a bad one −1 · −1 = 1, and past the end there is 0.
    return function(jnp.zeros_like(logp), advantages, logp, logp, mask, positive=0.5).loss


def in_an_algorithm() -> zootomy.Algorithm:
    """The block in the place of the clipped loss of Dr. GRPO."""
    block = zootomy.block("weighted_reinforce", positive=0.5)
    return zootomy.algorithm("dr_grpo", policy_loss=block)


def assembled(algorithm: zootomy.Algorithm) -> jax.Array:
    """The gradient of an algorithm's whole objective on toy arrays, without a model.

    Two prompts with two completions of one token each; the first prompt has one right answer, the
    second none, so only the first teaches.
    """
    from zootomy.learners import Outputs, Rollouts

    experience, objective = zootomy.assemble(algorithm)
    rollouts = Rollouts(
        rewards=jnp.array([[1.0, 0.0], [0.0, 0.0]]),
        valid=jnp.ones((2, 2), bool),
        mask=jnp.ones((4, 1)),
    )
    batch, _ = experience(rollouts, {})
    return jax.grad(lambda logp: objective(Outputs(logp=logp), batch, {}).total)(
        jnp.full((4, 1), -0.5)
    )


def trained(algorithm: zootomy.Algorithm, steps: int = 2) -> list[float]:
    """The mean reward of each of a few steps of a tiny policy, which learns to write digits."""
    # Imported here, so that the command line, which only wants the block, starts fast.
    from zootomy.learners import BatchConfig
    from zootomy.learners.run import build_learner, build_model
    from zootomy.learners.run_config import ModelSource, RunConfig
    from zootomy.tasks import RewardFunction, TaskConfig, make_task

    config = RunConfig(
        task=TaskConfig(options={"terms": 2}, train_size=16, eval_size=0),
        model=ModelSource(preset="tiny"),
        rollout=zootomy.RolloutConfig(max_prompt_tokens=4, max_new_tokens=3),
        batch=BatchConfig(full=4, group_size=4),
        steps=steps,
    )
    # An untrained policy never adds up right, but it writes a number now and then.
    number = RewardFunction(
        "number",
        lambda prompts, completions, **columns: [float(text.isdigit()) for text in completions],
    )
    task = replace(make_task(config.task), rewards=(number,), solved_by=None)
    learner = build_learner(algorithm, config, task, build_model(config, task))
    return [learner.step().metrics["reward/mean"] for _ in range(steps)]


if __name__ == "__main__":
    print(zootomy.describe("policy_loss", "weighted_reinforce"))
    print("\nbare, on arrays:\n", by_hand())
    mine = in_an_algorithm()
    print("\n" + zootomy.algorithm("dr_grpo").diff(mine))
    print(mine.describe())
    print("gradient of the assembled objective:", assembled(mine).ravel())
    print("mean reward of two steps:", trained(mine))
