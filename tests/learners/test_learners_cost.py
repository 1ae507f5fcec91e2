"""The assembled objective compiles to what a hand-written one compiles to."""

import jax
import jax.numpy as jnp
import numpy as np
import zootomy
from zootomy.learners.arrays import Experience
from zootomy.learners.objective import Outputs
from zootomy.models import token_logps

ROWS, WIDTH = 16, 64
BETA = 0.04


def experience():
    rng = np.random.default_rng(0)

    def draw():
        return jnp.asarray(rng.normal(size=(ROWS, WIDTH)), jnp.float32)

    mask = jnp.asarray(np.arange(WIDTH) < rng.integers(1, WIDTH, ROWS)[:, None], jnp.float32)
    empty = dict.fromkeys(Experience._fields)
    return Experience(
        **empty
        | {
            "mask": mask,
            "counted": mask,
            "group_ids": jnp.arange(ROWS) // 4,
            "advantages": draw(),
            "returns": draw(),
            "old_logp": draw(),
            "ref_logp": draw(),
        }
    )


def by_hand(logp, given, weights):
    """GRPO as its paper writes it: a clipped ratio, and k3 to the reference with weight 0.04."""
    acting = given.mask > 0
    logp = jnp.where(acting, logp, 0.0)
    ratio = jnp.exp(jnp.clip(logp - jnp.where(acting, given.old_logp, 0.0), -20.0, 20.0))
    advantages = jnp.where(acting, given.advantages, 0.0)
    gain = jnp.minimum(ratio * advantages, jnp.clip(ratio, 0.8, 1.2) * advantages)
    away = jnp.clip(jnp.where(acting, given.ref_logp, 0.0) - logp, -20.0, 20.0)
    distance = jnp.exp(away) - away - 1.0
    return jnp.sum(weights * jnp.where(acting, BETA * distance - gain, 0.0))


def compiled(objective, *arguments):
    program = jax.jit(jax.value_and_grad(objective)).lower(*arguments).compile()
    analysis = program.cost_analysis()
    return program(*arguments), {
        name: analysis[name] for name in ("flops", "transcendentals", "bytes accessed")
    }


def test_grpo_costs_what_a_hand_written_objective_costs():
    assembly = zootomy.assemble(zootomy.algorithm("grpo"))
    given = experience()
    weights = assembly.weights(given.counted, given.group_ids)
    logp = jnp.asarray(np.random.default_rng(1).normal(size=(ROWS, WIDTH)), jnp.float32)

    def assembled(logp, given, weights):
        return assembly.objective(Outputs(logp=logp), given, {"kl": BETA}, weights).total

    ours, our_cost = compiled(assembled, logp, given, weights)
    theirs, their_cost = compiled(by_hand, logp, given, weights)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-5, atol=1e-7)
    # Two exponentials an entry in both: of the ratio and of the distance.
    assert our_cost["transcendentals"] == their_cost["transcendentals"] == 2 * ROWS * WIDTH
    assert our_cost["flops"] <= 1.05 * their_cost["flops"], (our_cost, their_cost)
    # Masked inputs may be kept for the backward pass: at most four more arrays of [N, T].
    most = their_cost["bytes accessed"] + 4.5 * 4 * ROWS * WIDTH
    assert our_cost["bytes accessed"] <= most, (our_cost, their_cost)


def test_behind_the_smallest_of_heads_no_difference_is_left():
    assembly = zootomy.assemble(zootomy.algorithm("grpo"))
    given = experience()
    weights = assembly.weights(given.counted, given.group_ids)
    rng = np.random.default_rng(2)
    hidden = jnp.asarray(rng.normal(size=(ROWS, WIDTH, 16)), jnp.float32)
    kernel = jnp.asarray(rng.normal(size=(16, 50)), jnp.float32)
    tokens = jnp.asarray(rng.integers(0, 50, (ROWS, WIDTH)))

    def assembled(hidden, given, weights):
        logp, _ = token_logps(hidden, kernel, tokens)
        return assembly.objective(Outputs(logp=logp), given, {"kl": BETA}, weights).total

    def written(hidden, given, weights):
        return by_hand(token_logps(hidden, kernel, tokens)[0], given, weights)

    _, our_cost = compiled(assembled, hidden, given, weights)
    _, their_cost = compiled(written, hidden, given, weights)
    for name, theirs in their_cost.items():
        assert our_cost[name] <= 1.03 * theirs, (our_cost, their_cost)
