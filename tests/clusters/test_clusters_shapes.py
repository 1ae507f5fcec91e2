"""A few row shapes: short batches cost little, and a bounded number of programs is compiled."""

from itertools import starmap

import jax
import numpy as np
import pytest
from zootomy.clusters import Cluster, ClusterConfig, passes, programs
from zootomy.clusters.layout import fitting_layout
from zootomy.clusters.packing import pack
from zootomy.clusters.programs import accumulate, forward
from zootomy.clusters.sequences import Sequences
from zootomy.clusters.shapes import Shape, balance, cost, row_shapes
from zootomy.registry import ZootomyError


def sequences(totals):
    """Prompts of one token, and completions with the rest."""
    return Sequences(
        [np.ones(1, int)] * len(totals), [np.ones(total - 1, int) for total in totals], 200
    )


def test_the_shapes_there_are():
    # Halves of rows, then of the length at the same number of tokens.
    assert row_shapes(32, 96, 4, 1) == [*starmap(Shape, [(32, 96), (16, 96), (64, 48), (32, 48)])]
    # 5 * 21 tokens in rows of 11: 9 rows, a multiple of 2 is 8.
    assert row_shapes(6, 21, 3, 2) == [Shape(6, 21), Shape(2, 21), Shape(10, 11)]
    # One row a device cannot be halved.
    assert row_shapes(2, 8, 2, 2) == [Shape(2, 8)]


def test_several_shapes_come_with_large_micro_batches():
    assert len(row_shapes(21, 97, None, 1)) == 1  # 2,037 tokens
    assert len(row_shapes(22, 97, None, 1)) == 4  # 2,134 tokens


def test_cost_by_hand():
    # 2 rows of 10 tokens, attention as dear as the projections at 50: 2 (10 + 100 / 50) = 24.
    assert cost(Shape(2, 10), 50.0) == 24.0


@pytest.mark.parametrize(
    ("totals", "expected"),
    [
        ([96] * 32, (32, 96)),
        # 20 full rows: 2 passes of 16 cost as much as one of 32.
        ([96] * 20, (32, 96)),
        # 14 full rows: half the rows will do.
        ([96] * 14, (16, 96)),
        # 30 sequences of 40: 15 rows of two in 16 x 96, or 30 rows of one in 32 x 48, as many
        # tokens, of which attention takes less.
        ([40] * 30, (32, 48)),
        # One sequence too long for the short rows.
        ([40] * 30 + [60], (16, 96)),
        ([], (16, 96)),
    ],
)
def test_the_shape_is_no_longer_than_needed(totals, expected):
    shapes = row_shapes(32, 96, 4, 1)
    found = fitting_layout(sequences(totals), shapes, 2, 6.0 * 256)[0]
    if not totals:
        assert found.rows * found.length == 16 * 96
    else:
        assert found == Shape(*expected)


def test_a_shape_that_saves_less_than_a_quarter_is_not_compiled():
    # Half the length with an attention that costs nothing: the same number of tokens.
    assert fitting_layout(sequences([40] * 64), [Shape(32, 96), Shape(64, 48)], 2, 1e9)[0] == Shape(
        32, 96
    )


def test_micro_batches_cost_about_the_same():
    # Dearest first: 9 to A, 7 to B, 6 to B (7 < 9), 5 to A (9 < 13), 4 to B (13 < 14), 1 to A.
    assert balance([9, 1, 7, 4, 6, 5], 2, 3) == [[0, 1, 5], [2, 3, 4]]
    # B is full after three, so that the last goes to A, which is dearer.
    assert balance([9, 2, 2, 2, 2], 2, 3) == [[0, 4], [1, 2, 3]]


def test_packing_balances_what_attention_costs():
    """One long sequence a row costs more than two that fill it."""
    given = sequences([12, 12, 6, 6, 6, 6])
    micros = pack(given, Shape(2, 12), 2, attention_length=6.0)
    members = [sorted(n for n in micro.sequence_ids if n >= 0) for micro in micros]
    # Rows: [12], [12], [6, 6], [6, 6] cost 12 + 24 = 36 and 2 (6 + 6) = 24: one of each in both.
    assert members == [[0, 2, 3], [1, 4, 5]]


def test_micro_tokens_set_the_rows():
    config = ClusterConfig(micro_tokens=100, row_length=21)
    assert config.rows(21) == 4
    assert ClusterConfig().rows(21) == 16
    message = "micro_tokens=20 holds no row of 21 tokens on each of 1 devices; give at least 21."
    with pytest.raises(ZootomyError, match=message):
        ClusterConfig(micro_tokens=20).rows(21)
    with pytest.raises(ZootomyError, match="micro_rows=2 and micro_tokens=90 both say how large"):
        ClusterConfig(micro_rows=2, micro_tokens=90)


def shaped(kit, shapes):
    config = ClusterConfig(micro_rows=4, row_length=11, sequences_per_row=2, row_shapes=shapes)
    return Cluster(config, actor=kit.decoder(), optimizer=kit.adam, total_steps=10)


def test_ten_steps_of_random_lengths_compile_a_bounded_number_of_programs(kit, monkeypatch):
    traces = []
    compute = programs.compute

    def counted(*arguments):
        traces.append(arguments)
        return compute(*arguments)

    # Traces, not the size of a cache: other tests' programs push entries out of the common one.
    monkeypatch.setattr(programs, "compute", counted)
    cluster = shaped(kit, 3)
    rng = np.random.default_rng(3)
    accumulate.jitted.clear_cache()
    forward.jitted.clear_cache()
    seen = set()
    for step in range(10):
        n = int(rng.integers(1, 9))
        prompts, completions = rng.integers(1, 7 - step % 2 * 4, n), rng.integers(1, 5, n)
        given = kit.sequences(prompts, completions, seed=step)
        seen.add(cluster._passes._pack(given, cluster._passes._update_shapes)[0].rows.tokens.shape)
        cluster.log_probs("actor", given, temperature=1.0)
        kit.update(cluster, given)
    assert 1 < len(seen) <= 3
    # One of each shape for the pass without a gradient, one for that with it.
    assert len(traces) == 2 * len(seen)


def test_no_shape_and_no_cut_changes_a_result(kit, ragged, monkeypatch):
    """One shape, several, and rows that go through one after the other: the same step."""
    found = []
    for shapes, tokens in ((1, 1000), (3, 1000), (1, 11), (1, 22)):
        monkeypatch.setattr(passes, "_CPU_TOKENS", tokens)
        monkeypatch.setattr(passes, "_CPU_TOKENS_FORWARD", tokens)
        cluster = shaped(kit, shapes)
        logp = cluster.log_probs("actor", ragged, temperature=0.7)["logp"]
        result = kit.update(cluster, ragged)
        params = jax.device_get(jax.tree.leaves(cluster.state().arrays["actor"]["params"]))
        found.append([logp, result.loss, result.grad_norm, result.metrics["actions"][0], *params])
    assert found[0][3] == 17.0
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            np.testing.assert_allclose(two, one, rtol=2e-5, atol=2e-6)


def test_a_loss_that_couples_sequences_sees_them_all(kit, ragged, monkeypatch):
    """The largest log-probability of the batch, squared: in parts it would be another number."""
    monkeypatch.setattr(passes, "_CPU_TOKENS", 11)
    seen = []

    def coupled(outputs, batch, coefficients):
        del batch, coefficients
        seen.append(outputs.logp.shape[0])
        return outputs.logp.min() ** 2, {}

    cluster = shaped(kit, 3)
    logp = cluster.log_probs("actor", ragged, temperature=1.0)["logp"]
    result = kit.update(cluster, ragged, loss=coupled, whole=True)
    assert set(seen) == {4 * 2}
    np.testing.assert_allclose(result.loss, logp.min() ** 2, rtol=1e-5)
