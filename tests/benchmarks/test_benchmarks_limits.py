"""The machine's limits over several rounds."""

import limits
from limits import Limits, Yardstick, typical

ROUNDS = [Limits(9, 1, 5, 7, 2, 3), Limits(4, 6, 5, 1, 8, 3), Limits(5, 2, 90, 2, 4, 1)]


def test_the_typical_limit_is_the_median_of_each_alone():
    # 4 5 9, 1 2 6, 5 5 90, 1 2 7, 2 4 8 and 1 3 3: no round is it
    assert typical(ROUNDS) == Limits(5, 2, 5, 2, 4, 3)
    assert typical(ROUNDS[:1]) == ROUNDS[0]


def test_a_yardstick_keeps_what_it_measures(monkeypatch):
    rounds = iter(ROUNDS)
    monkeypatch.setattr(limits, "measure", lambda *told: next(rounds))
    yardstick = Yardstick(None, [], 2)
    assert yardstick.measure() == ROUNDS[0]
    yardstick.measure()
    assert yardstick.found == ROUNDS[:2]
