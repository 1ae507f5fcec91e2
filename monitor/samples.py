"""A few completions a step, to read what the policy really says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .jsonl import StepLines, read_lines
from .metrics import MonitorError

SAMPLES_FILE = "samples.jsonl"
MARKDOWN_FILE = "samples.md"


@dataclass(frozen=True)
class Sample:
    """One completion worth showing.

    Args:
        prompt: as text.
        completion: as text.
        reward: None where the completion is invalid.
        answer: the right one, where there is one.
    """

    prompt: str
    completion: str
    reward: float | None = None
    answer: str | None = None


def choose(total: int, count: int, step: int, seed: int = 0) -> list[int]:
    """Which of `total` completions to show: the same for the same step and seed, in order."""
    if total < 0 or count < 0:
        raise MonitorError(f"total and count must be 0 or more, got {total} and {count}.")
    bits = np.random.MT19937(np.random.SeedSequence([seed, step]))
    order = np.arange(total)
    np.random.RandomState(bits).shuffle(order)
    return sorted(order[:count].tolist())


class SampleLog:
    """Writes samples to `samples.jsonl`, and as a page to read when closed.

    Args:
        folder: the run folder.
        resume_step: as in `RunLog`: samples of later steps are removed.
        writes: as in `RunLog`.
    """

    def __init__(self, folder: str | Path, *, resume_step: int | None = None, writes: bool = True):
        self.folder = Path(folder)
        self._lines = StepLines(self.folder / SAMPLES_FILE, resume_step) if writes else None

    def write(self, step: int, samples: Sequence[Sample], kind: str = "train") -> None:
        """Keep the samples of a step; `kind` says where they come from, `train` or `eval`."""
        for sample in samples:
            reward = sample.reward
            if reward is not None and not math.isfinite(reward):
                raise MonitorError(f"A sample's reward must be finite or None, got {reward}.")
            if self._lines is not None:
                self._lines.append({"step": step, "kind": kind, **asdict(sample)})

    def close(self) -> None:
        """Close the file and write the page."""
        if self._lines is not None:
            self._lines.close()
            write_markdown(self.folder)


def write_markdown(folder: str | Path) -> Path:
    """Make a readable page of a run's samples.

    Args:
        folder: a run folder with samples.

    Returns:
        The page's path.
    """
    folder = Path(folder)
    parts = ["# Sample completions\n"]
    last: tuple[int, str] | None = None
    for record in read_lines(folder / SAMPLES_FILE):
        if last != (record["step"], record["kind"]):
            last = (record["step"], record["kind"])
            parts.append(f"\n## Step {record['step']} ({record['kind']})\n")
        parts.append(_markdown(record))
    path = folder / MARKDOWN_FILE
    path.write_text("\n".join(parts), encoding="utf-8")
    return path


def _markdown(record: dict[str, Any]) -> str:
    reward = "invalid" if record["reward"] is None else f"{record['reward']:g}"
    answer = "" if record["answer"] is None else f", right answer `{record['answer']}`"
    return (
        f"Reward {reward}{answer}\n\n{_fence(record['prompt'])}\n\n{_fence(record['completion'])}\n"
    )


def _fence(text: str) -> str:
    """A code block whose fence is longer than any run of backticks within."""
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"
