"""Blocks that need whole distributions: measured, trained, the same in any shape of batch."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo_inputs as zoo
from flax import nnx
from tiny_run import TINY
from zootomy import Role, ZootomyError, algorithm, assemble, block, register
from zootomy.blocks import kl_estimator as kl
from zootomy.blocks.masking import masked
from zootomy.clusters import OptimizerConfig, Rows, Wanted
from zootomy.clusters.programs import accumulate
from zootomy.learners import Outputs
from zootomy.learners.costs import cost
from zootomy.models import Decoder
from zootomy.registry.registry import restore, snapshot

V = 7
SGD = OptimizerConfig(name="sgd", learning_rate=1.0, max_grad_norm=None)
# Of another width than the policy, as a teacher may be.
TEACHER = dataclasses.replace(TINY, hidden_size=12, num_heads=3, num_kv_heads=3)
WHOLE = {"kl_estimator": "full"}
TOP = block("distillation", coef=0.5, estimator="top_k", k=4)


def teacher():
    return Decoder(TEACHER, rngs=nnx.Rngs(7))


@pytest.fixture
def registry():
    saved = snapshot()
    yield
    restore(saved)


def distributions(seed, spoilt=0.0):
    """`[N, T, V]` log-probabilities; where there is no valid action stands `spoilt`."""
    logits = np.random.default_rng(seed).normal(size=(zoo.N, zoo.T, V))
    rollouts = zoo.make_rollouts()
    counts = (rollouts.mask > 0) & rollouts.valid.reshape(-1, 1)
    return jnp.where(
        counts[..., None], jax.nn.log_softmax(jnp.asarray(logits, jnp.float32)), spoilt
    )


class TestAssembled:
    """With plain arrays `[N, T, V]`, as in a loop of one's own."""

    def loss(self, chosen, logits, experience, spoilt=0.0):
        outputs = Outputs(
            logp=zoo.make_outputs(chosen).logp,
            distributions=logits,
            ref_distributions=distributions(2, spoilt),
        )
        return assemble(chosen).objective(outputs, experience, {"kl": 0.3})

    def experience(self, chosen):
        rollouts = zoo.make_rollouts()._replace(kl=None)
        return assemble(chosen).experience(rollouts, {"kl": 0.3})[0]

    @pytest.mark.parametrize("direction", ["reverse", "forward"])
    def test_the_distance_in_the_loss(self, direction):
        chosen = algorithm("grpo", kl_estimator=block("full", direction=direction))
        batch = self.experience(chosen)
        weights = assemble(chosen).weights(batch.counted, batch.group_ids)

        def by_hand(logits):
            distance = kl.full(logits, distributions(2), direction=direction)
            return 0.3 * jnp.sum(weights * distance * batch.mask)

        def ours(logits):
            return self.loss(chosen, logits, batch).parts["kl_loss"]

        logits = distributions(1)
        got, want = (jax.jit(jax.value_and_grad(f))(logits) for f in (ours, by_hand))
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
        metric = self.loss(chosen, logits, batch).metrics["kl"]
        assert float(metric[0]) == pytest.approx(
            float((kl.full(logits, distributions(2), direction=direction) * batch.mask).sum()),
            rel=1e-5,
        )

    def test_what_is_masked_is_inert(self):
        chosen = algorithm("grpo", regularizer=TOP, **WHOLE)
        batch = self.experience(chosen)

        def total(logits, spoilt):
            return self.loss(chosen, logits, batch, spoilt).total

        evaluate = jax.jit(jax.value_and_grad(total))
        want = evaluate(distributions(1), 0.0)
        got = evaluate(distributions(1, np.nan), np.nan)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)

    @pytest.mark.parametrize("placement", ["reward", "advantage"])
    def test_before_the_update(self, placement):
        chosen = algorithm("rloo", kl_placement=placement, **WHOLE)
        assembly, rollouts = assemble(chosen), zoo.make_rollouts()
        outputs = Outputs(distributions=distributions(1), ref_distributions=distributions(2))
        mask = rollouts.mask * rollouts.valid.reshape(-1, 1)
        distance = assembly.distance(outputs, {"mask": jnp.asarray(mask)})
        want = kl.full(distributions(1), distributions(2)) * mask
        np.testing.assert_allclose(distance, want, rtol=1e-5, atol=1e-6)
        found, metrics = assembly.experience(rollouts._replace(kl=distance), {"kl": 0.3})
        assert float(metrics["kl"][0]) == pytest.approx(float(want.sum()), rel=1e-5)
        without, _ = assembly.experience(rollouts._replace(kl=distance), {"kl": 0.0})
        moved = np.asarray(found.advantages - without.advantages)
        if placement == "reward":  # what is still to come of it, this action's included
            expected = -0.3 * np.cumsum(np.asarray(want)[:, ::-1], axis=1)[:, ::-1]
        else:
            expected = 0.3 * (want.sum() / mask.sum() - want)
        np.testing.assert_allclose(moved, expected * mask, rtol=1e-4, atol=1e-5)

    def test_what_is_missing_is_named(self):
        chosen = algorithm("grpo", **WHOLE)
        with pytest.raises(ZootomyError) as error:
            assemble(chosen).objective(
                Outputs(logp=zoo.make_outputs(chosen).logp), self.experience(chosen), {"kl": 0.3}
            )
        assert str(error.value) == (
            "kl_estimator 'full' needs distributions, which are missing; give the policy's whole "
            "distributions at each action."
        )
        with pytest.raises(ZootomyError) as error:
            self.experience(algorithm("rloo", **WHOLE))
        assert str(error.value) == (
            "kl_placement 'reward' with kl_estimator 'full' needs kl, which is missing; measure it "
            "with the assembly's `distance`."
        )
        plain = algorithm("grpo")
        with pytest.raises(ZootomyError, match="outputs has distributions, but no term of the"):
            self.loss(plain, distributions(1), self.experience(plain))


# Every way in which whole distributions come into a step, in few programs.
CHOSEN = {
    "loss": algorithm("grpo", regularizer=TOP, **WHOLE),
    "reward": algorithm("rloo", ratio="token", **WHOLE),
}


def parameters(cluster):
    return [np.asarray(x) for x in jax.tree.leaves(cluster.state().arrays["actor"]["params"])]


def change(make, name, shape, mesh="data=1"):
    """What a step of plain SGD at rate 1 adds to the parameters, and its metrics."""
    rows, length, per_row = shape
    learner = make(
        CHOSEN[name], rows=rows, length=length, per_row=per_row, mesh=mesh,
        optimizer=SGD, reference=teacher(),
    )  # fmt: skip
    before = parameters(learner.cluster)
    metrics = learner.step().metrics
    after = parameters(learner.cluster)
    return [a - b for a, b in zip(after, before, strict=True)], metrics


@functools.cache
def one_sequence_a_row(make, name):
    return change(make, name, (8, 8, 1))


# In rows of 8 tokens with 4 slots of 3 actions each, the slots are more than a row can hold.
@pytest.mark.parametrize(
    "name, shape, mesh",
    [
        ("loss", (2, 24, 4), "data=1"),
        ("loss", (4, 8, 4), "data=4"),
        ("reward", (4, 8, 4), "data=4"),
    ],
    ids=["loss-packed", "loss-devices", "reward-devices"],
)
def test_a_step_is_the_same_in_any_shape(tiny_learner, name, shape, mesh):
    want, wanted = one_sequence_a_row(tiny_learner, name)
    got, metrics = change(tiny_learner, name, shape, mesh)
    assert max(np.abs(x).max() for x in want) > 1e-3
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    for key, value in wanted.items():
        if not key.startswith(("time", "tokens_per")):
            assert metrics[key] == pytest.approx(value, rel=1e-4, abs=1e-5), key


def test_the_distance_is_that_of_the_two_models(tiny_learner):
    """By hand: each completion by itself, plain logits."""

    @nnx.jit
    def log_softmax(model, tokens):
        return jax.nn.log_softmax(model.logits(model(tokens, np.arange(8)[None])))

    found = []
    for name in CHOSEN:
        learner = tiny_learner(CHOSEN[name], reference=teacher())
        models = learner.cluster.model("actor"), teacher()
        report = learner.step()
        total = weight = 0.0
        for group in report.collected.groups:
            for one in group.completions:
                # What comes after the completion is not seen; one width is one program.
                length = len(group.prompt) + len(one.tokens)
                tokens = np.zeros((1, 8), np.int32)
                tokens[0, :length] = [*group.prompt, *one.tokens]
                here = slice(len(group.prompt) - 1, length - 1)
                p, q = (np.asarray(log_softmax(m, tokens))[0, here] for m in models)
                total += float((np.exp(p) * (p - q)).sum())
                weight += len(one.tokens)
        assert report.metrics["kl"] == pytest.approx(total / weight, rel=1e-4)
        found.append(report.metrics["kl"])
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert found[0] > 0.05


@pytest.mark.parametrize(
    "name, changes, options",
    [
        ("grpo", {"kl_estimator": block("top_k", k=3)}, {"epochs": 2}),
        ("grpo", {"kl_placement": "advantage", **WHOLE}, {"mini": 2}),
        ("pico", {"regularizer": block("distillation", coef=1.0, estimator="full")}, {}),
        # The engine's word for the ratio, a pass of the policy's own for the distance.
        ("rloo", {"correction": "bypass", **WHOLE}, {}),
    ],
    ids=["top_k", "advantage", "distillation", "bypass"],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_it_trains(tiny_learner, name, changes, options):
    learner = tiny_learner(name, changes=changes, reference=teacher(), **options)
    metrics = learner.step().metrics
    distance = [metrics[key] for key in ("kl", "distillation_regularizer") if key in metrics]
    assert min(distance) > 0.01
    assert np.isfinite(metrics["grad_norm"])


def test_distillation_brings_the_policy_to_the_teacher(tiny_learner):
    changes = {"regularizer": block("distillation", coef=3.0, estimator="full")}
    learner = tiny_learner("pico", changes=changes, reference=teacher())
    terms = [learner.step().metrics["distillation_regularizer"] for _ in range(12)]
    assert terms[-1] < 0.7 * terms[0]


class TestOnesOwn:
    """A block of one's own over the vocabulary, with extra inputs, without a reference."""

    @pytest.fixture(autouse=True)
    def renyi(self, registry):
        @register("regularizer", "renyi", needs=("logits",))
        def renyi(logp, ref_logp, entropy, advantages, mask, *, truncated, order: float = 2.0):
            """Minus the Rényi entropy, on good actions of completions that were not cut.

            log Σ_v π(v)^α / (α − 1)
            """
            assert ref_logp is None
            good = (mask > 0) & (masked(advantages, mask) > 0) & ~truncated[:, None]
            power = jax.nn.logsumexp(order * logp.astype(jnp.float32), axis=-1)
            return masked(power / (order - 1), good)

        return renyi

    def test_it_is_trained(self, tiny_learner):
        changes = {"regularizer": block("renyi", coef=0.1)}
        chosen = algorithm("dr_grpo").override(changes)
        assert chosen.needs == {"groups", "logits"}
        metrics = tiny_learner(chosen).step().metrics
        assert metrics["renyi_regularizer"] != 0.0

    def test_its_value(self):
        chosen = algorithm("dr_grpo", regularizer=block("renyi", coef=1.0)).resolve_length(zoo.T)
        assembly = assemble(chosen)
        batch, _ = assembly.experience(zoo.make_rollouts(), {})
        logits = distributions(1)
        logp = zoo.make_outputs(chosen).logp
        loss = assembly.objective(Outputs(logp=logp, distributions=logits), batch, {})
        weights = assembly.weights(batch.counted, batch.group_ids)
        good = (batch.advantages > 0) & ~batch.truncated[:, None] & (batch.mask > 0)
        want = jnp.sum(weights * jnp.where(good, jnp.log(jnp.exp(2 * logits).sum(-1)), 0))
        np.testing.assert_allclose(loss.parts["renyi_regularizer"], want, rtol=1e-5)


class TestRefusals:
    def refused(self, make, name, **changes):
        with pytest.raises(ZootomyError) as error:
            make(name, changes=changes)
        return str(error.value)

    def test_how_many_tokens(self, tiny_learner):
        assert self.refused(tiny_learner, "grpo", kl_estimator="top_k") == (
            "kl_estimator 'top_k' over the teacher's best tokens needs to know how many: set its k "
            "(64 is usual), or take 'full' for all of them."
        )
        teacher_without = block("distillation", coef=1.0, estimator="top_k")
        assert self.refused(tiny_learner, "pico", regularizer=teacher_without).startswith(
            "regularizer 'distillation' over the teacher's best tokens needs to know how many"
        )
        assert self.refused(tiny_learner, "grpo", kl_estimator=block("top_k", k=13)) == (
            "top_k: k must be in 1..12, the tokens that are given, got 13."
        )

    def test_blocks_that_nobody_could_serve(self, tiny_learner, registry):
        @register("ratio", "wide", needs=("logits",))
        def wide(logp, old_logp, mask):
            """Nothing."""
            return logp

        @register("regularizer", "coupled", needs=("logits", "whole_batch"))
        def coupled(logp, ref_logp, entropy, advantages, mask):
            """Nothing."""
            return logp

        assert self.refused(tiny_learner, "pico", ratio="wide") == (
            "ratio 'wide' needs logits, and only blocks of kl_estimator and regularizer are given "
            "whole distributions. Write it as a regularizer."
        )
        assert self.refused(tiny_learner, "pico", regularizer=block("coupled", coef=1.0)) == (
            "regularizer 'coupled' needs both logits and whole_batch, but whole distributions "
            "exist for a few tokens at a time alone. Let it take each token alone, or do with the "
            "sampled tokens' log-probabilities."
        )

    def test_an_input_that_is_not_at_hand_before_the_update(self, tiny_learner, registry):
        @register("kl_estimator", "judging", needs=("logits",))
        def judging(logp, ref_logp, *, advantages):
            """Nothing."""
            return logp.sum(-1) * advantages

        assert self.refused(tiny_learner, "rloo", kl_estimator="judging").startswith(
            "kl_estimator 'judging' asks for the input 'advantages', which is not at hand there; "
            "there are: group_ids, mask, old_logp, rollout_logp, truncated."
        )


def test_what_it_costs():
    whole = cost(algorithm("grpo", **WHOLE))
    assert whole.passes["distributions"] == (
        "the heads of policy and reference once more, for kl_estimator 'full'"
    )
    assert whole.memory["distributions"] == (
        "the reference's hidden states, [N, T, D] on the host; distributions only of a chunk of "
        "tokens at a time"
    )
    assert "distributions" not in cost(algorithm("grpo")).passes
    bypassing = cost(algorithm("rloo", correction="bypass", **WHOLE))
    assert bypassing.passes["old_logp"] == (
        "one of the policy before the update, for kl_placement 'reward'"
    )
    assert algorithm("grpo", **WHOLE).needs == {"groups", "logits", "reference"}


def temporary(learner, slots, width=16):
    """Bytes that the program of a micro-batch takes beside what goes in and out; not run."""
    updater, model = learner.updater, learner.cluster._models[Role.ACTOR]
    updater.gather = dataclasses.replace(updater.gather, width=width)
    rollouts = updater.gather.outline(slots // 2, 2, 1)
    experience, _, _ = jax.eval_shape(
        lambda *given: updater._experience(*given, True), rollouts, {"kl": 0.1}
    )
    tokens = rollouts.mask
    whole = jax.ShapeDtypeStruct((slots, 20), np.int32)
    actions = jax.ShapeDtypeStruct((slots, width), np.int32)
    rows = Rows(whole, whole, whole, whole, actions, jax.ShapeDtypeStruct((slots,), np.int32))
    _, hidden, shared = updater.gather.outline_heads(tokens.shape)
    compiled = accumulate.jitted.lower(
        model.graph, updater._actor_loss, Wanted(entropy=True, head=True), model.params,
        model.rest, model.zeros(), rows, (experience, tokens, hidden), np.float32(1),
        {"kl": np.float32(0.1), **shared},
    ).compile()  # fmt: skip
    return compiled.memory_analysis().temp_size_in_bytes


def test_no_buffer_of_a_training_step_holds_all_distributions(tiny_learner, monkeypatch):
    monkeypatch.setattr("zootomy.models.logps._LOGITS_A_CHUNK", 2**15)  # 8 tokens at a time
    monkeypatch.setattr("zootomy.models.logps._LOGITS_KEPT", 0)
    config = dataclasses.replace(TINY, vocab_size=4096)
    chosen = algorithm("grpo", **WHOLE)
    learner = tiny_learner(chosen, actor=Decoder(config, rngs=nnx.Rngs(0)))
    few, many = temporary(learner, 8), temporary(learner, 32)
    assert many < 32 * 16 * 4096 * 4  # one [N, T, V] in float32
    assert many - few < 24 * 16 * 4096 * 4 / 8
