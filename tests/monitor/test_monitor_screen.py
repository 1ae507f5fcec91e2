"""What a person sees while a run goes on."""

import io
import math

import pytest
from rich.console import Console
from zootomy.monitor import MonitorError, Sample, Screen, Spans, sparkline
from zootomy.monitor.panels import duration, number, spans_bar

METRICS = {
    "reward/mean": 0.734,
    "eval/accuracy": 0.5,
    "kl": 0.0123,
    "entropy": 0.4,
    "clip_ratio": 0.02,
    "completions/mean_length": 7.25,
    "tokens_per_second": 12345.0,
    "time/rollout": 0.3,
    "time/train": 0.6,
    "time/step": 1.0,
}


class Clock:
    """Says what it is set to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def plain():
    out = io.StringIO()
    return out, Console(file=out, force_terminal=False, width=80)


def test_words_are_shown_as_they_are():
    # `print` would make a smiling face of the one and a colour of the other.
    out, console = plain()
    with Screen("a :smile: run", 1, console=console) as screen:
        screen.message("[red] " + "long " * 30)
    assert out.getvalue() == "a :smile: run\n[red] " + "long " * 30 + "\n"


def test_one_plain_line_a_step_without_a_terminal():
    out, console = plain()
    clock = Clock()
    with Screen("grpo on arithmetic", 4, console=console, clock=clock) as screen:
        screen.status("compiling")
        screen.status("compiling")
        screen.update(0, {"eval/accuracy": 0.25})
        for step, now in ((1, 30.0), (2, 32.0), (3, 34.0)):
            clock.now = now
            screen.update(step, {"reward/mean": step / 10, "kl": math.nan, "unknown": 1})
        screen.message("saved [bold]x[/bold]")
    # The first step compiled for 30 s; the pace is that of the others, 2 s a step.
    assert out.getvalue().splitlines() == [
        "grpo on arithmetic",
        "compiling",
        "step 0/4  held-out accuracy 25.0%",
        "step 1/4  reward 0.100  kl to reference nan",
        "step 2/4  reward 0.200  kl to reference nan  left 0:04",
        "step 3/4  reward 0.300  kl to reference nan  left 0:02",
        "saved [bold]x[/bold]",
    ]


@pytest.mark.parametrize("width", [80, 130])
def test_the_screen_shows_everything(width):
    out = io.StringIO()
    console = Console(
        file=out, force_terminal=True, width=width, height=50, color_system=None, _environ={}
    )
    with Screen("grpo", 10, console=console) as screen:
        screen.update(
            3,
            METRICS,
            [Sample("7+5=", "12", 1.0, "12"), Sample("[red]a\x1b[2J\nb", "x", None)],
        )
        screen.status("compiling")
    text = out.getvalue()
    for part in ("grpo", "step 3/10", "0.734", "50.0%", "0.0123", "2.00%", "7.2", "12,345"):
        assert part in text
    for part in ("rollout 0.30 s", "train 0.60 s", "A step, 0.90 s", "7+5=", "invalid"):
        assert part in text
    # A model's output neither marks up nor drives the terminal.
    assert "[red]a·[2J⏎b" in text
    assert "\x1b[2J" not in text
    assert "step 1.00 s" not in text


def test_numbers():
    assert number(-1e-9, ".4f") == "0.0000"
    assert number(-12345.0, ",.0f") == "-12,345"
    assert number(math.nan, ".4f") == "nan"


def test_durations_and_bars():
    assert duration(59.6) == "1:00"
    assert duration(3725) == "1:02:05"
    bar = spans_bar({"a": 3.0, "b": 1.0}, 8).plain.splitlines()
    assert bar[0] == "█" * 8
    assert bar[1].startswith("■ a 3.00 s   ■ b 1.00 s")


def test_sparkline():
    assert sparkline([0, 1, 2, 3], 4) == "▁▃▆█"
    assert sparkline([5, 5], 4) == "▄▄"
    assert sparkline([0, math.nan, 7], 3) == "▁ █"
    assert sparkline([math.nan], 3) == " "
    assert sparkline([], 3) == ""
    # Six values in three places: means .5, 2.5, 4.5.
    assert sparkline([0, 1, 2, 3, 4, 5], 3) == "▁▅█"


def test_spans_total_over_a_step():
    clock = Clock()
    spans = Spans(clock)
    for seconds in (1.0, 2.0):
        with spans("rollout"):
            clock.now += seconds
            with spans("reward"):
                clock.now += 0.5

    def fail():
        with spans("train"):
            clock.now += 4.0
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert spans.take() == {"time/rollout": 4.0, "time/reward": 1.0, "time/train": 4.0}
    assert spans.take() == {}
    with pytest.raises(MonitorError, match="one word without '/'"), spans("a/b"):
        pass
