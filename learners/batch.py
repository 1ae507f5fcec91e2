"""Batch sizes: the words, what they come to, and which relations between them cannot be."""

from __future__ import annotations

from dataclasses import dataclass

from ..registry import ZootomyError


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """How many prompts, completions and passes make a step.

    Attributes:
        full: prompts sampled a step.
        mini: prompts an optimizer step; None takes the full batch at once.
        group_size: completions a prompt (G).
        epochs: passes over the full batch (μ).

    Raises:
        ZootomyError: if a size is below 1, or `mini` does not divide `full`.
    """

    full: int = 32
    mini: int | None = None
    group_size: int = 8
    epochs: int = 1

    def __post_init__(self) -> None:
        for name in ("full", "mini", "group_size", "epochs"):
            value = self.__dict__[name]
            if value is None and name == "mini":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ZootomyError(
                    f"batch.{name} must be a whole number of 1 or more, got {value!r}."
                )
        if self.mini is not None and self.full % self.mini:
            divisors = [n for n in range(1, self.full + 1) if self.full % n == 0]
            near = sorted(divisors, key=lambda n: abs(n - (self.mini or 0)))[:2]
            raise ZootomyError(
                f"batch.mini must divide batch.full: {self.full} prompts cannot be cut into "
                f"mini-batches of {self.mini}. Use {' or '.join(map(str, sorted(near)))}."
            )

    @property
    def mini_prompts(self) -> int:
        """Prompts an optimizer step."""
        return self.mini or self.full

    @property
    def completions(self) -> int:
        """Completions a step, `full * group_size`."""
        return self.full * self.group_size

    @property
    def updates(self) -> int:
        """Optimizer steps a step."""
        return self.epochs * (self.full // self.mini_prompts)

    def explain(self, steps: int) -> str:
        """The sizes as a sentence.

        >>> print(BatchConfig(full=4, mini=2, group_size=3, epochs=2).explain(steps=10))
        4 prompts × 3 = 12 completions a step; 2 epochs × 2 mini-batches of 2 prompts (6 \
completions) = 4 optimizer steps a step; 10 steps = 40 optimizer steps and 120 completions.
        """
        minis = self.full // self.mini_prompts
        return (
            f"{self.full} prompts × {self.group_size} = {self.completions} completions a step; "
            f"{many(self.epochs, 'epoch')} × {many(minis, 'mini-batch')} of "
            f"{many(self.mini_prompts, 'prompt')} ({self.mini_prompts * self.group_size} "
            f"completions) = {many(self.updates, 'optimizer step')} a step; "
            f"{many(steps, 'step')} = {many(steps * self.updates, 'optimizer step')} and "
            f"{steps * self.completions} completions."
        )


def many(count: int, noun: str) -> str:
    """A count with its noun.

    >>> many(1, "pass"), many(2, "pass"), many(2, "epoch")
    ('1 pass', '2 passes', '2 epochs')
    """
    if count == 1:
        return f"1 {noun}"
    hisses = noun.endswith(("ch", "ss")) and noun != "epoch"
    return f"{count} {noun}es" if hisses else f"{count} {noun}s"
