"""Completions that share their prompt: rows of prompts and branches, and what they compute."""

import itertools
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from zootomy.clusters import Cluster, ClusterConfig, Role, Sequences, Shape, pack
from zootomy.clusters.layout import fitting_layout, lay_out
from zootomy.clusters.row_sizes import shared_prompts
from zootomy.clusters.shapes import branched, cheapest, cost, row_shapes
from zootomy.registry import ZootomyError

# Two prompts; three completions of the first, one of the second.
SMALL = Sequences([[1, 2, 3], [1, 2, 3], [4, 5], [1, 2, 3]], [[6], [7, 8], [9], [10]], width=2)


def test_hand_packed():
    # P = 5 holds both prompts. The group of the longest completion comes first, its longest first:
    # 1 to branch 0; 0 finds no room there (2 + 1 > 2), nor a second place: branch 1; 3 has no
    # branch left and takes a new row, with its prompt again. Then 2 finds room in that row.
    (micro,) = pack(SMALL, Shape(rows=2, length=9, prompt=5, branches=2), sequences_per_row=1)
    rows = micro.rows
    np.testing.assert_array_equal(
        rows.tokens, [[1, 2, 3, 0, 0, 7, 8, 6, 0], [1, 2, 3, 4, 5, 10, 0, 9, 0]]
    )
    # A completion goes on where its prompt ends: after 3 tokens, or after 2.
    np.testing.assert_array_equal(
        rows.positions, [[0, 1, 2, 0, 0, 3, 4, 3, 0], [0, 1, 2, 0, 1, 3, 0, 2, 0]]
    )
    np.testing.assert_array_equal(
        rows.segments, [[1, 1, 1, 0, 0, 2, 2, 3, 0], [1, 1, 1, 2, 2, 3, 0, 4, 0]]
    )
    np.testing.assert_array_equal(rows.reads, [[[1, 1], [1, 0]], [[1, 0], [2, 0]]])
    np.testing.assert_array_equal(micro.sequence_ids, [1, 0, 3, 2])
    np.testing.assert_array_equal(rows.actions, [[5, 6], [7, 0], [5, 0], [7, 0]])
    # A first action is predicted by the last token of its prompt, in column 2, or 4; the column
    # before it, as in rows without branches, is padding or another completion's.
    before = [rows.before[slot // 2, rows.actions[slot, 0]] for slot in range(4)]
    assert before == [2, 2, 2, 4]


@given(
    groups=st.lists(
        st.tuples(st.integers(1, 4), st.lists(st.integers(0, 5), min_size=1, max_size=5)),
        max_size=5,
    ),
    rows=st.integers(1, 3),
    room=st.integers(4, 9),
    branches=st.integers(2, 4),
    per_branch=st.integers(1, 3),
)
def test_every_action_stands_once_and_reads_its_own_prompt(
    groups, rows, room, branches, per_branch
):
    rng = np.random.default_rng(0)
    prompts, completions = [], []
    for length, lengths in groups:
        prompts += [rng.integers(1, 99, length)] * len(lengths)
        completions += [rng.integers(1, 99, n) for n in lengths]
    sequences = Sequences(prompts, completions, width=5)
    shape = Shape(rows, room + branches * 6, room, branches)
    seen = []
    for micro in pack(sequences, shape, per_branch):
        x = micro.rows
        assert x.tokens.shape == (rows, shape.length)
        assert x.reads.shape == (rows, branches, 6)
        for slot, n in enumerate(micro.sequence_ids):
            if n < 0:
                assert x.lengths[slot] == 0
                continue
            seen.append(n)
            row, columns = slot // (branches * per_branch), x.actions[slot][: x.lengths[slot]]
            np.testing.assert_array_equal(x.tokens[row, columns], completions[n])
            np.testing.assert_array_equal(x.before[row, columns[1:]], columns[:-1])
            # One branch, all of it: what another branch holds is not seen.
            assert len(set((columns - room) // 6)) == 1
            (read,) = set(x.reads[row].ravel()[columns - room])
            prompt = np.flatnonzero(x.segments[row, :room] == read)
            np.testing.assert_array_equal(x.tokens[row, prompt], prompts[n])
            assert x.before[row, columns[0]] == prompt[-1]
            whole = [*prompt, *columns]
            np.testing.assert_array_equal(x.positions[row, whole], np.arange(len(whole)))
    assert sorted(seen) == [n for n, c in enumerate(completions) if len(c)]


def test_rows_with_branches_take_the_place_of_rows():
    full = Shape(32, 96)
    # 4 branches of 64 tokens after 32 of the prompt: 288 tokens, for 4 rows of 96 = 384.
    assert branched(full, 32, 4, devices=1) == Shape(8, 288, 32, 4)
    # Half of the 6 completions of a group, since 32 rows are 4 a device.
    assert branched(full, 32, 6, devices=8) == Shape(8, 32 + 3 * 64, 32, 3)
    # No divisor of 5 but 1 in two rows; and one completion shares with nobody.
    assert branched(Shape(2, 96), 32, 5, devices=1) is None
    assert branched(full, 32, 1, devices=1) is None
    # One token is left for a completion, or none.
    assert branched(Shape(8, 33), 32, 4, devices=1) == Shape(2, 36, 32, 4)
    assert branched(Shape(8, 32), 32, 4, devices=1) is None


def test_cost_by_hand():
    # P 4, two branches of 3: seen 4² + 2 · 3 (4 + 3) = 58; 2 rows of 10 + 58 / 29 = 12 tokens.
    assert cost(Shape(2, 10, 4, 2), 29.0) == 24.0


def test_short_completions_are_packed_with_their_prompts():
    """Branches as long as the longest completion hold little of short ones: prompts stand again."""
    full, shared = Shape(4, 24), Shape(1, 84, 4, 4)
    prompts = [np.full(4, n // 4) for n in range(16)]
    long = Sequences(prompts, [np.ones(20, int)] * 16, 20)
    short = Sequences(prompts, [np.ones(2, int)] * 16, 20)
    # 4 rows of 84 for 16 of 24; then still one row a prompt, for 4 of 24.
    shapes = [shared, full, Shape(2, 24)]
    assert fitting_layout(long, shapes, 4, 1e9)[0] == shared
    assert fitting_layout(short, shapes, 4, 1e9)[0] == full
    # Where a run is to have one shape, the other is for what does not fit it.
    assert fitting_layout(short, shapes[:2], 4, 1e9)[0] == shared


@given(
    lengths=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=6),
    rows=st.integers(2, 16),
    length=st.integers(12, 30),
    per_branch=st.integers(1, 3),
    attention=st.sampled_from([5.0, 1e9]),
)
def test_shapes_that_are_not_tried_would_not_be_taken(lengths, rows, length, per_branch, attention):
    """What is told of a shape without laying it out never decides otherwise than its layout."""
    prompts = [np.full(3, n) for n, group in enumerate(lengths) for _ in group]
    completions = [np.ones(size, int) for group in lengths for size in group]
    sequences = Sequences(prompts, completions, 9)
    plain = row_shapes(rows, length, 6, 1)
    shared = branched(plain[0], 3, max(map(len, lengths)), 1)
    shapes = [shape for shape in [shared, *plain] if shape is not None and shape.length >= 12]
    counts = {shape: len(lay_out(sequences, shape, per_branch)) for shape in shapes}
    expected = cheapest(counts, shapes[0], attention)
    shape, layout = fitting_layout(sequences, shapes, per_branch, attention)
    assert shape == expected
    assert layout == lay_out(sequences, expected, per_branch)


def test_who_shares():
    config = ClusterConfig(mesh="data=2")
    assert shared_prompts(config, "xla", 7, 4) == (7, 4)
    assert shared_prompts(config, "cudnn", 7, 4) is None
    assert shared_prompts(config, "xla", None, 4) is None
    assert shared_prompts(ClusterConfig(share_prompts=False), "xla", 7, 4) is None
    assert shared_prompts(ClusterConfig(mesh="sequence=2"), "xla", 7, 4) is None
    with pytest.raises(ZootomyError, match="group_size is 0; expected an integer >= 1"):
        shared_prompts(config, "xla", 7, 0)
    with pytest.raises(ZootomyError, match="max_prompt_tokens is 0; expected an integer >= 1"):
        shared_prompts(config, "xla", 0, 4)


@pytest.fixture(scope="module")
def groups():
    """Three prompts of 3, 5 and 2 tokens, each with four completions, one of them empty."""
    rng = np.random.default_rng(5)
    prompts = [rng.integers(0, 11, n) for n in (3, 5, 2)]
    lengths = [2, 5, 1, 3, 0, 4, 5, 2, 1, 1, 5, 3]
    completions = [rng.integers(0, 11, n) for n in lengths]
    return Sequences([prompts[n // 4] for n in range(12)], completions, 5)


def cluster(kit, share, per_row=2, mesh="data=1", row_shapes=None, **options):
    config = ClusterConfig(
        row_shapes=row_shapes,
        mesh=mesh,
        micro_rows=8,
        row_length=10,
        sequences_per_row=per_row,
        share_prompts=share,
        axis_rules={"vocab": "none"},
    )
    return Cluster(
        config, actor=kit.decoder(), optimizer=kit.adam, total_steps=10, max_prompt_tokens=5,
        group_size=4, critic=kit.critic(), critic_optimizer=kit.adam, **options,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("per_row", "mesh", "expected"),
    # One slot a branch: the head runs on the actions. Three: on all columns of the branches.
    # On four devices two branches a row, so that each has one.
    # Two layouts between these carry the slow mark.
    [
        pytest.param(1, "data=1", (2, 25), marks=pytest.mark.slow),
        (3, "data=1", (2, 25)),
        pytest.param(2, "data=2", (2, 25), marks=pytest.mark.slow),
        (1, "data=2,fsdp=2", (4, 15)),
    ],
)
def test_shared_prompts_change_no_result(kit, groups, per_row, mesh, expected):
    found = []
    for share in (True, False):
        made = cluster(kit, share, per_row, mesh)
        shape = made._passes._pack(groups, made._passes._update_shapes)[0].rows.tokens.shape
        assert shape == (expected if share else (8, 10))
        said = made.log_probs(
            Role.ACTOR, groups, temperature=0.7, with_entropy=True, with_hidden=True
        )
        said["values"], said["final"] = made.values_with_final(groups)
        done = kit.update(made, groups, temperature=0.7)
        of_critic = kit.update(made, groups, "critic", kit.squared_values)
        said |= {"loss": done.loss, "norm": done.grad_norm, "critic norm": of_critic.grad_norm}
        after = made.log_probs(Role.ACTOR, groups, temperature=1.0)["logp"]
        found.append({**said, "after": after, "values after": made.values(groups)})
    assert found[0]["norm"] > 0.01
    assert found[0]["critic norm"] > 0.01
    for name, shared in found[0].items():
        np.testing.assert_allclose(shared, found[1][name], rtol=2e-5, atol=2e-6, err_msg=name)


def test_a_neighbour_is_not_seen(kit, groups):
    """Other completions of the group, and other groups, altered: the same to the last bit."""
    made = cluster(kit, True)
    logp = made.log_probs(Role.ACTOR, groups, temperature=1.0)["logp"]
    for n in (1, 7):
        completions = [c if m == n else (c + 1) % 11 for m, c in enumerate(groups.completions)]
        altered = Sequences(groups.prompts, completions, 5)
        np.testing.assert_array_equal(
            made.log_probs(Role.ACTOR, altered, temperature=1.0)["logp"][n], logp[n]
        )
        # The prompt is seen: with another first token, all of the sequence changes.
        prompts = [np.array([(p[0] + 1) % 11, *p[1:]]) for p in groups.prompts]
        other = Sequences(prompts, groups.completions, 5)
        changed = made.log_probs(Role.ACTOR, other, temperature=1.0)["logp"][n]
        length = groups.lengths[n]
        assert (changed[:length] != logp[n][:length]).all()


def test_a_loss_over_the_whole_batch_sees_it_at_once(kit, groups):
    """Two shared rows hold 8 sequences; all 11 that act must stand in one micro-batch."""
    made = cluster(kit, True)
    assert kit.update(made, groups).micro_batches == 2
    assert kit.update(made, groups, whole=True).micro_batches == 1


def test_sequences_that_share_no_prompt_have_rows_of_their_own(kit):
    rng = np.random.default_rng(0)
    alone = Sequences([rng.integers(0, 11, 5) for _ in range(8)], [rng.integers(0, 11, 5)] * 8, 5)
    made = cluster(kit, True, per_row=1, row_shapes=2)
    (micro,) = made._passes._pack(alone, made._passes._update_shapes)
    assert micro.rows.tokens.shape == (8, 10)
    # Where there is to be one shape, it is that of groups, with a branch of four in use.
    one = cluster(kit, True, per_row=1)
    assert len(one._passes._pack(alone, one._passes._update_shapes)) == 4


def test_layout_is_fixed_by_the_order():
    shape = Shape(2, 9, 5, 2)
    layouts = [lay_out(SMALL, shape, 1) for _ in range(2)]
    assert layouts[0] == layouts[1]
    members = list(itertools.chain(*(row.members for row in layouts[0])))
    assert sorted(members) == [0, 1, 2, 3]


# Room for 5 tokens of prompts and 5 of completions, or for 10 together.
SHARED, FULL = Shape(2, 25, 5, 4), Shape(8, 10)


def test_a_prompt_longer_than_was_said_stands_with_its_completion():
    sequences = Sequences([np.ones(8, int)] * 4, [[2, 3]] * 4, 5)
    shape = fitting_layout(sequences, [SHARED, FULL], 2, 1e9)[0]
    assert shape == FULL
    (micro,) = pack(sequences, shape, 2)
    np.testing.assert_array_equal(micro.rows.tokens[:4], [[1] * 8 + [2, 3]] * 4)


@pytest.mark.parametrize(("prompt", "completion"), [(9, 2), (6, 5)])
def test_what_is_longer_than_every_row_is_refused(prompt, completion):
    """Completions would be written over the prompt's end, or into the next branch."""
    sequences = Sequences([np.ones(prompt, int)] * 4, [np.ones(completion, int)] * 4, 5)
    with pytest.raises(ZootomyError) as error:
        fitting_layout(sequences, [SHARED, FULL], 2, 1e9)
    assert str(error.value) == (
        f"Sequence 0 has 11 tokens ({prompt} of the prompt and {completion} of the completion), "
        "more than row_length=10; raise row_length or shorten the prompts."
    )


@pytest.mark.parametrize(("prompt", "completion"), [(6, 1), (1, 6)])
def test_what_is_longer_than_its_part_of_a_row_is_refused(prompt, completion):
    sequences = Sequences([np.ones(prompt, int)], [np.ones(completion, int)], 6)
    with pytest.raises(ZootomyError) as error:
        pack(sequences, SHARED, 2)
    assert str(error.value) == (
        f"Sequence 0 has {prompt} tokens of the prompt and {completion} of the completion, but "
        "rows have room for 5 and branches for 5; raise row_length or shorten the prompts."
    )


def test_thousands_of_sequences_are_laid_out_in_well_under_a_second():
    """Looking at every row and branch for each of them took seconds."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 99, rng.integers(5, 64)) for _ in range(2048)]
    completions = [rng.integers(0, 99, n) for n in rng.integers(1, 128, 2048)]
    sequences = Sequences(prompts, completions, 128)
    started = time.process_time()
    layout = lay_out(sequences, Shape(8, 64 + 8 * 128, 64, 8), 4)
    assert time.process_time() - started < 0.8
    assert sorted(n for row in layout for n in row.members) == list(range(2048))
