"""Any valid choice of blocks works: drawn at random over all slots, tried on the same inputs.

Uncompiled: a program a combination would take its time to compile, and the operations are few.
"""

import random
import typing
import warnings

import jax
import numpy as np
import pytest
import zoo_inputs as given
from zootomy import Algorithm, ZootomyError, algorithms, assemble, block
from zootomy.learners import Outputs
from zootomy.registry import describe, names

FAST, SLOW = 50, 500


def draw(seed):
    """A choice for every slot, as keyword arguments of `Algorithm`; not every one is valid."""
    rng = random.Random(seed)

    def some(slot, **settings):
        """A block of the slot, with some of its words and switches turned."""
        name = rng.choice(names(slot))
        for key, entry in describe(slot, name).hyperparameters.items():
            words = [w for w in typing.get_args(entry.annotation) if isinstance(w, str)]
            choices = [True, False] if entry.annotation is bool else words
            if choices and rng.random() < 0.4:
                settings[key] = rng.choice(choices)
            if key == "k" and entry.default is None:
                settings[key] = rng.choice((1, 2))
        return block(name, **settings)

    def maybe(slot, **settings):
        return some(slot, **settings) if rng.random() < 0.5 else None

    placement = rng.choice(names("kl_placement"))
    advantage = some("advantage")
    critic = "critic" in describe("advantage", advantage.name).needs
    terms = {spec.name: spec for spec in (some("regularizer", coef=coefficient(rng))
             for _ in range(rng.choice((0, 0, 1, 2))))}  # fmt: skip
    return {
        "reward_shaping": [some("reward_shaping") for _ in range(rng.choice((0, 1, 1, 2)))],
        "group_filter": maybe("group_filter", strategy=rng.choice(("drop", "replace"))),
        "kl_placement": placement,
        "kl_estimator": some("kl_estimator"),
        "controller": block("constant", coef=0.0 if placement == "none" else 0.2),
        "advantage": advantage,
        "value_loss": some("value_loss") if critic else None,
        "whitening": some("whitening"),
        "ratio": some("ratio"),
        "policy_loss": some("policy_loss"),
        "correction": maybe("correction", denominator=rng.choice(("original", "kept"))),
        "aggregation": some("aggregation"),
        "regularizer": list(terms.values()),
    }


def coefficient(rng):
    """A number, or a controller."""
    return rng.choice((0.1, 0.5, block("entropy_target"), block("constant", coef=0.3)))


def build(seed):
    """The first valid combination that the seed leads to, and what the refused ones were told."""
    told = []
    for attempt in range(100):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return Algorithm(**draw(f"{seed}/{attempt}")).resolve_length(given.T), told
        except ZootomyError as error:
            told.append(str(error))
    raise AssertionError(f"nothing valid in a hundred draws: {told[-1]}")


def evaluate(chosen, outputs, batch, weights):
    """The loss, and its gradient by what the models say."""
    objective = assemble(chosen).objective
    present = [name for name, x in outputs._asdict().items() if x is not None]

    def total(*arrays):
        made = Outputs(**dict(zip(present, arrays, strict=True)))
        return objective(made, batch, given.coefficients(chosen), weights).total

    arrays = [outputs._asdict()[name] for name in present]
    value, gradients = jax.value_and_grad(total, argnums=tuple(range(len(arrays))))(*arrays)
    return float(value), [np.asarray(x) for x in gradients]


def parts_of(tree, seed):
    """The rows in two parts, in slots as a micro-batch has them: the rest of the slots are 0."""
    chosen = np.random.default_rng(seed).random(given.N) < 0.5
    for rows in (np.flatnonzero(chosen), np.flatnonzero(~chosen)):

        def take(leaf, rows=rows):
            taken = np.zeros_like(leaf)
            taken[: len(rows)] = leaf[rows]
            return taken

        yield rows, jax.tree.map(take, tree)


def check(seed):
    chosen, told = build(seed)
    for text in told:
        assert text.endswith("."), text
        assert len(text) > 40, text
    assembly = assemble(chosen)
    batch, metrics = assembly.experience(given.make_rollouts(), given.coefficients(chosen))
    weights = np.asarray(assembly.weights(batch.counted, batch.group_ids))
    batch, outputs = jax.tree.map(np.asarray, (batch, given.make_outputs(chosen)))
    whole, gradients = evaluate(chosen, outputs, batch, weights)
    for name, leaf in {**batch._asdict(), **dict(enumerate(gradients)), "loss": whole}.items():
        assert leaf is None or np.isfinite(leaf).all(), (name, chosen)
    assert all(np.isfinite(pair).all() for pair in metrics.values()), chosen
    # What is invalid or past the end has no part.
    assert all((x[batch.mask == 0] == 0).all() for x in gradients), chosen
    if given.couples(chosen):
        return
    total, added = 0.0, [np.zeros_like(x) for x in gradients]
    for rows, (some, part, share) in parts_of((outputs, batch, weights), seed):
        value, found = evaluate(chosen, some, part, share)
        total += value
        for into, x in zip(added, found, strict=True):
            into[rows] += x[: len(rows)]
    np.testing.assert_allclose(total, whole, rtol=2e-4, atol=2e-5, err_msg=str(chosen))
    for a, b in zip(added, gradients, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5, err_msg=str(chosen))


@pytest.mark.parametrize("seed", range(FAST))
def test_it_is_finite_and_the_same_in_parts(seed):
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FAST, SLOW))
def test_it_is_finite_and_the_same_in_parts_for_many_more(seed):
    check(seed)


def test_the_draws_reach_every_block():
    seen = {key for seed in range(SLOW) for key in blocks_of(build(seed)[0])}
    slots = {slot for slot, _ in seen}
    missing = {(slot, name) for slot in slots for name in names(slot) if (slot, name) not in seen}
    # Controllers of the distance are drawn by no coefficient here.
    assert {key for key in missing if key[0] != "controller"} == set()


def blocks_of(chosen):
    return [(slot, spec.name) for slot, spec in chosen.specs()]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("seed", range(0, 240, 20))
def test_it_trains_two_steps(tiny_learner, seed):
    chosen, _ = build(seed)
    learner = tiny_learner(chosen)
    for _ in range(2):
        metrics = learner.step().metrics
        assert all(np.isfinite(value) for value in metrics.values()), chosen


@pytest.mark.slow
@pytest.mark.parametrize("name", algorithms())
def test_every_named_algorithm_trains_two_steps(tiny_learner, name):
    learner = tiny_learner(name)
    for _ in range(2):
        metrics = learner.step().metrics
        assert all(np.isfinite(value) for value in metrics.values())
    assert learner.cluster.steps("actor") == 2
