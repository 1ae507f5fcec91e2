"""Any valid choice of blocks works: drawn at random over all slots, and trained.

Each draw takes two steps on a toy task, and its last update's gradient is taken again with the
sequences packed, in micro-batches, and on four devices (see `halves` for what is compiled).
"""

import random
import typing
import warnings

import halves
import numpy as np
import pytest
import tiny_run
from zoo_inputs import T, couples
from zootomy import Algorithm, ZootomyError, algorithms, block
from zootomy.registry import describe, names

FAST, SLOW = 12, 550


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
                return Algorithm(**draw(f"{seed}/{attempt}")).resolve_length(T), told
        except ZootomyError as error:
            told.append(str(error))
    raise AssertionError(f"nothing valid in a hundred draws: {told[-1]}")


def share(prompts, completions):
    """A reward in 0..1, different within a group; none for what begins with a 9."""
    return [
        None if text.startswith("9") else reward
        for text, reward in zip(completions, tiny_run.share(prompts, completions), strict=True)
    ]


def check(seed, tiny_learner, monkeypatch):
    """Invalid choices end in a sentence; a valid one trains, and no layout changes its gradient."""
    chosen, told = build(seed)
    for text in told:
        assert text.endswith("."), text
        assert len(text) > 40, text
    halves.use(monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learner = tiny_learner(chosen, function=share)
    updates = halves.record(learner.cluster)
    for _ in range(2):
        metrics = learner.step().metrics
        assert all(np.isfinite(value) for value in metrics.values()), chosen
    for done in {done.role: done for done in updates}.values():
        assert len(done.micros) == 1
        assert all(np.isfinite(x).all() for x in done.gradient.values()), chosen
        for name, layout in halves.layouts().items():
            if couples(chosen) and "micro-batches" in name:
                continue
            found, value, parts = layout.gradient(done)
            # Two rows of eight tokens a micro-batch.
            many = "micro-batches" in name and tokens_of(done.sequences) > 16
            assert parts >= 2 if many else parts <= 2, (name, parts)
            np.testing.assert_allclose(
                value, done.value, rtol=1e-4, atol=1e-6, err_msg=f"{name} {chosen}"
            )
            check_equal(found, done.gradient, f"{name} {chosen}")


def tokens_of(sequences):
    parts = zip(sequences.prompts, sequences.completions, strict=True)
    return sum(len(prompt) + len(completion) for prompt, completion in parts)


def check_equal(found, wanted, label):
    """Equal up to the noise of float32, in which whitened advantages add up to about 0."""
    scale = max(np.abs(x).max() for x in wanted.values())
    for key, x in wanted.items():
        np.testing.assert_allclose(
            found[key], x, rtol=1e-4, atol=1e-6 + 1e-5 * scale, err_msg=f"{key} {label}"
        )


@pytest.mark.parametrize("seed", range(FAST))
def test_it_trains_with_one_gradient_in_every_layout(seed, tiny_learner, monkeypatch):
    check(seed, tiny_learner, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FAST, SLOW))
def test_many_more_train_with_one_gradient_in_every_layout(seed, tiny_learner, monkeypatch):
    check(seed, tiny_learner, monkeypatch)


def test_the_draws_reach_every_block():
    seen = {key for seed in range(SLOW) for key in blocks_of(build(seed)[0])}
    slots = {slot for slot, _ in seen}
    missing = {(slot, name) for slot in slots for name in names(slot) if (slot, name) not in seen}
    # Controllers of the distance are drawn by no coefficient here.
    assert {key for key in missing if key[0] != "controller"} == set()


def blocks_of(chosen):
    return [(slot, spec.name) for slot, spec in chosen.specs()]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "seed", [3, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 240, 20))]
)
def test_the_compiled_program_has_the_gradient_of_its_halves(seed, tiny_learner):
    """What the tests above hold of the halves holds of what a run compiles."""
    learner = tiny_learner(build(seed)[0], function=share)
    learner.step()  # Some distances have a kink where the policy is its reference.
    updates = halves.record(learner.cluster)
    learner.step()
    passes = learner.cluster._passes
    for done in {done.role: done for done in updates}.values():
        model = learner.cluster._models[done.role]
        model.params = done.params
        with pytest.MonkeyPatch.context() as patch:
            halves.use(patch)
            passes.gradient(model, done.micros, done.batch, done.loss, **done.settings)
        again = updates[-1]
        np.testing.assert_allclose(again.value, done.value, rtol=1e-4, atol=1e-6)
        check_equal(again.gradient, done.gradient, f"seed {seed}")


@pytest.mark.slow
@pytest.mark.parametrize("name", algorithms())
def test_every_named_algorithm_trains_two_steps(tiny_learner, name):
    learner = tiny_learner(name)
    for _ in range(2):
        metrics = learner.step().metrics
        assert all(np.isfinite(value) for value in metrics.values())
    assert learner.cluster.steps("actor") == 2
