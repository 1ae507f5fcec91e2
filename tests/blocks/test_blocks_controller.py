"""Controllers by hand."""

import pytest
from zootomy.registry import ZootomyError, get


def run(controller, *steps):
    state = controller.init()
    coefficients = [state["coefficient"]]
    for metrics in steps:
        state, coefficient = controller.update(state, metrics)
        assert coefficient == state["coefficient"]
        coefficients.append(coefficient)
    return coefficients


def test_constant():
    assert run(get("controller", "constant")(coef=0.3), {}, {"kl": 9.0}) == [0.3, 0.3, 0.3]


def test_adaptive_kl_by_hand():
    controller = get("controller", "adaptive_kl")(coef=0.1, target=2.0, horizon=100, n_steps=10)
    # kl 3: 3/2 − 1 = .5, at most .2: ·(1 + .2·10/100) = ·1.02
    # kl 1.8: −.1: ·(1 − .1·.1) = ·.99;  kl 0: −1, at least −.2: ·.98
    coefficients = run(controller, {"kl": 3.0}, {"kl": 1.8}, {"kl": 0.0})
    expected = [0.1, 0.102, 0.102 * 0.99, 0.102 * 0.99 * 0.98]
    assert coefficients == pytest.approx(expected, rel=1e-12)


def test_adaptive_kl_reads_the_completions_of_a_step():
    controller = get("controller", "adaptive_kl")(coef=1.0, target=1.0, horizon=100)
    # 50 completions: 1 + .2·50/100
    assert run(controller, {"kl": 5.0, "sequences": 50})[-1] == pytest.approx(1.1)


@pytest.mark.parametrize(
    "metrics, message",
    [
        ({"entropy": 1.0}, "adaptive_kl needs the metric 'kl'; this step has: entropy."),
        (
            {"kl": float("nan")},
            "adaptive_kl got kl = nan; the coefficient cannot follow it. "
            "Look for the step's first metric that is not finite.",
        ),
        ({"kl": 0.1}, "adaptive_kl needs the metric 'sequences'; this step has: kl."),
    ],
)
def test_a_metric_that_is_missing_or_not_finite(metrics, message):
    controller = get("controller", "adaptive_kl")()
    with pytest.raises(ZootomyError) as error:
        controller.update(controller.init(), metrics)
    assert str(error.value) == message


def test_settings_that_cannot_be():
    with pytest.raises(ZootomyError) as error:
        get("controller", "adaptive_kl")(target=0.0)
    assert str(error.value) == "adaptive_kl: target must be above 0, got 0.0."


def test_kl_window():
    controller = get("controller", "kl_window")(
        coef=0.1, low=1.0, high=2.0, factor=2.0, minimum=0.05, maximum=0.3
    )
    # 3: ·2; 1.5: inside; 9: ·2 would be .4, at most .3; .5 four times: .15, .075, .05 at least
    steps = [{"kl": kl} for kl in (3.0, 1.5, 9.0, 0.5, 0.5, 0.5, 0.5)]
    expected = [0.1, 0.2, 0.2, 0.3, 0.15, 0.075, 0.05, 0.05]
    assert run(controller, *steps) == pytest.approx(expected)


def test_entropy_target():
    settings = {"coef": 0.02, "target": 1.0, "delta": 0.01, "maximum": 0.03}
    steps = [{"entropy": h} for h in (0.5, 0.9, 2.0, 1.0)]
    # level: .03, .03 (bound), .02, .03; the bonus is off before the first step and above target
    gated = get("controller", "entropy_target")(**settings)
    assert run(gated, *steps) == pytest.approx([0.0, 0.03, 0.03, 0.0, 0.03])
    free = get("controller", "entropy_target")(**settings, gated=False)
    assert run(free, *steps) == pytest.approx([0.02, 0.03, 0.03, 0.02, 0.03])
