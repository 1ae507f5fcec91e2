"""Exponents of curves, and the counted work along them."""

import curves
import pytest
from curves import Point, exponent


def test_exponents():
    assert exponent([2, 4, 8, 16], [3, 6, 12, 24]) == 1.0
    assert exponent([1, 2, 4], [5, 20, 80]) == 2.0
    # A constant part of 10 has no weight in the last two doublings of 1000·n ...
    assert exponent([1, 2, 4, 8], [1010, 2010, 4010, 8010]) == pytest.approx(1.0, abs=0.01)
    # ... and what comes before them is not looked at.
    assert exponent([1, 2, 4, 8], [999, 2, 4, 8]) == 1.0


def test_the_work_is_linear_where_nothing_asks_for_more():
    base, wide = Point(), Point(prompts=2 * Point().prompts)
    for name, flops in base.flops().items():
        assert wide.flops()[name] == 2 * flops
    # Against the completion's length it is less than linear, because the prompt stays: without
    # attention (32 + 128) / (32 + 64) = 1.67 for twice the length.
    short, long = (Point(completion=size).flops()["training step"] for size in (64, 128))
    assert 160 / 96 < long / short < 1.1 * 160 / 96


def test_every_axis_is_a_field_of_a_point():
    for field, sizes in curves.AXES.values():
        assert field in vars(Point())
        assert vars(Point())[field] in sizes


def test_the_table_and_the_picture(tmp_path):
    found = {
        "prompts": {
            "sizes": [4, 8, 16],
            **{
                name: {
                    "seconds": [1.0, 2.0, 4.0],
                    "flops": [10, 20, 40],
                    "exponent": 1.0,
                    "counted": 0.98,
                }
                for name in curves.MEASURES
            },
        }
    }
    assert "| prompts | 1.00 (0.98) | 1.00 (0.98) | 1.00 (0.98) |" in curves.table(found)
    curves.plot(found, tmp_path / "images" / "scaling.png")
    assert (tmp_path / "images" / "scaling.png").stat().st_size > 5000


def test_a_point_that_failed_makes_no_exponent():
    assert str(exponent([1, 2, 4], [1.0, float("nan"), 4.0])) == "nan"
