"""The calculation for many accelerators."""

import counts
import paper
import pytest
from counts import Shape
from paper import Chip, Part, Work

CHIP = Chip("toy", flops=100.0, memory=10.0, size=1e3, near=5.0, far=1.0)


def test_the_model_has_the_size_of_its_name():
    # 7.6e9 as published, without the 0.13 million biases of its queries, keys and values and with
    # the norms of queries and keys that it does not have.
    assert counts.parameters(paper.SEVEN_B) == pytest.approx(7.6157e9, rel=1e-3)


def test_a_part_takes_the_slower_of_operations_and_memory():
    # Half of 100 operations a second, seven tenths of 10 bytes a second.
    assert Part(flops=100.0).seconds(CHIP) == pytest.approx(2.0)
    assert Part(flops=100.0, memory=28.0).seconds(CHIP) == pytest.approx(4.0)


def test_links_come_on_top_or_beside():
    # Eight tenths of 5 and of 1 bytes a second: 4 bytes take 1 s, 2 bytes 2.5 s.
    link = [(4.0, CHIP.near), (2.0, CHIP.far)]
    assert Part(flops=100.0, link=link, waits=0.5).seconds(CHIP) == pytest.approx(2 + 3.5 + 0.5)
    assert Part(flops=100.0, link=link, overlaps=True).seconds(CHIP) == pytest.approx(3.5)


def test_training_is_shared_and_its_links_counted():
    tiny = Shape(layers=1, hidden=8, heads=2, kv_heads=1, head_dim=4, inner=16, vocab=32)
    work = Work(prompts=32, group=2, prompt=4, mean=8, limit=16)
    lengths = [(4, n) for group in work.lengths() for n in group]
    n = counts.parameters(tiny)
    few = paper.training(tiny, work, CHIP, 8)
    assert few.flops == counts.train_flops(tiny, lengths) / 8
    # One pass: weights gathered twice in 2 bytes, gradients scattered in 4; 7 of 8 parts travel.
    assert few.link_bytes == pytest.approx((2 * 2 + 4) * n * 7 / 8)
    many = paper.training(tiny, work, CHIP, 16)
    # Two nodes add up an eighth of the gradients, there and back, half of it travels.
    assert many.link_bytes - few.link_bytes == pytest.approx(2 * 4 * n / 8 * 1 / 2)


def test_an_engine_over_several_chips_reads_its_part_and_waits():
    # Four heads of keys: 4 of a node's 8 chips share an engine, as of the 7B model.
    tiny = Shape(layers=3, hidden=16, heads=4, kv_heads=4, head_dim=4, inner=16, vocab=32)
    assert paper.tensor_degree(tiny, 16) == paper.tensor_degree(paper.SEVEN_B, 256) == 4
    assert paper.tensor_degree(tiny, 8) == 1
    work = Work(prompts=16, group=2, prompt=4, mean=8, limit=16)
    part = paper.generation(tiny, work, CHIP, 16)
    lengths = work.lengths()
    quarters = [
        counts.generation(tiny, [(4, one) for one in lengths[i : i + 4]], bytes_per_number=2)
        for i in (0, 4, 8, 12)
    ]
    slowest = max(quarters, key=lambda one: one.decode_bytes)
    assert part.memory == slowest.decode_bytes / 4
    # Two reductions a layer of rows [16] in 2 bytes, of which 3 of 4 parts travel, there and back.
    sampled = sum(map(sum, lengths)) / 4
    assert part.link_bytes == pytest.approx(2 * 2 * 3 * sampled * 16 * 2 * 3 / 4)
    assert part.waits == pytest.approx(2 * 3 * slowest.decode_steps * paper.LATENCY)


def test_lengths_are_those_asked_for():
    lengths = [n for group in Work().lengths() for n in group]
    assert len(lengths) == 256 * 8
    # Cut at 4,096 a geometric mean of 1,024 becomes 1,024 · (1 - e^-4) = 1,005.
    assert sum(lengths) / len(lengths) == pytest.approx(1005, rel=0.05)
    assert max(lengths) == 4096
