"""Where the models of a run come from, as settings."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from ..clusters import REWARD_MODEL
from ..models import AttentionKernel, LayerStyle
from ..registry import ZootomyError
from .score_scale import ScoreScale
from .update import VALUE_COEF

Dtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """Where the policy comes from.

    Attributes:
        path: a Hugging Face folder, a run folder or `RUN/checkpoints` (its newest checkpoint) or
            one of them, `RUN/checkpoints/STEP`; empty for a small model from scratch.
        preset: size of a model from scratch: `tiny`, `small` or `medium`.
        dtype: of the arithmetic; log-probabilities and losses are float32 anyway.
        param_dtype: of the weights.
        remat: recompute activations in the backward pass, for less memory.
        layers: compile every layer for itself (`unroll`, and `auto` at present), or one that is
            scanned over a stack of all (`scan`).
        attention: whose program attends in passes over packed rows: plain `xla`, `cudnn` on GPUs,
            `splash` on TPUs; `auto` chooses by platform.
    """

    path: str = ""
    preset: str = "small"
    dtype: Dtype = "float32"
    param_dtype: Dtype = "float32"
    remat: bool = False
    layers: LayerStyle = "auto"
    attention: AttentionKernel = "auto"


@dataclass(frozen=True, kw_only=True)
class CriticConfig:
    """Where the critic comes from, for algorithms that have one.

    Attributes:
        path: a Hugging Face folder of a sequence classifier with one label, which shares the
            policy's tokenizer, e.g. the reward model's, or a run or checkpoint with a critic;
            empty for the policy's body.
        fresh_head: take the backbone from there and begin with a head that says 0.
        shared: no model of its own, but a head on the policy's backbone: one forward pass gives
            both, and `policy loss + coef * value loss` is one objective.
        coef: the factor of the value loss in it.

    Raises:
        ZootomyError: for settings that exclude each other, or have no effect.
    """

    path: str = ""
    fresh_head: bool = False
    shared: bool = False
    coef: float = VALUE_COEF

    def __post_init__(self) -> None:
        if self.shared and self.path:
            raise ZootomyError(
                f"critic.shared puts the critic on the policy's backbone, and critic.path "
                f"{self.path!r} names a model of its own; give one of them."
            )
        if self.fresh_head and not self.path:
            raise ZootomyError(
                "critic.fresh_head has no effect without critic.path: the head is fresh anyway."
            )
        if not self.shared and self.coef != VALUE_COEF:
            raise ZootomyError(
                "critic.coef has no effect on a critic with a backbone of its own; set "
                "critic.shared, or the learning rate of critic_optimizer."
            )
        if not 0 < self.coef < math.inf:
            raise ZootomyError(f"critic.coef must be a number above 0, got {self.coef}.")


@dataclass(frozen=True, kw_only=True)
class ReferenceConfig:
    """What the policy is compared with, where the algorithm asks for a reference.

    Attributes:
        path: a Hugging Face folder, e.g. of a teacher, which shares the policy's tokenizer, or a
            run or checkpoint; empty for the policy as it is before the first step.
        refresh_steps: after how many steps the policy becomes the reference; 0: never.

    Raises:
        ZootomyError: for a negative number of steps.
    """

    path: str = ""
    refresh_steps: int = 0

    def __post_init__(self) -> None:
        check_refresh(self.refresh_steps)


@dataclass(frozen=True, kw_only=True)
class RewardModelConfig:
    """A model that scores completions, beside the task's reward functions.

    Attributes:
        path: a Hugging Face folder of a sequence classifier with one label, which shares the
            policy's tokenizer, or a run or checkpoint, whose critic scores; empty for none.
        weight: the factor of its score.
        normalize: take away the running mean of all its scores, and divide by their deviation,
            before the weight.
        clip: what is then cut off on both sides; null for nothing.

    """

    path: str = ""
    weight: float = 1.0
    normalize: bool = False
    clip: float | None = None

    def check(self, setting: str, *, optional: bool = False) -> None:
        """Refuse what cannot be.

        Args:
            setting: the name that these settings have in a run.
            optional: whether there may be no model.

        Raises:
            ZootomyError: for a clip that is not above 0, or settings of a model that is not there.
        """
        if self.clip is not None and not self.clip > 0:
            raise ZootomyError(f"{setting}.clip must be above 0 or null, got {self.clip}.")
        if not math.isfinite(self.weight):
            raise ZootomyError(f"{setting}.weight must be a finite number, got {self.weight}.")
        if self.path:
            return
        if not optional:
            raise ZootomyError(f"{setting}.path is empty; name the folder of the reward model.")
        if (self.weight, self.normalize, self.clip) != (1.0, False, None):
            raise ZootomyError(
                f"{setting}.weight, normalize and clip have no effect without a reward model; "
                f"set {setting}.path."
            )

    @property
    def scale(self) -> ScoreScale:
        """What becomes of its scores."""
        return ScoreScale(weight=self.weight, normalize=self.normalize, clip=self.clip)


def check_refresh(steps: int) -> None:
    """Refuse a number of steps that cannot be, after which the policy becomes the reference.

    Raises:
        ZootomyError: for a negative one.
    """
    if steps < 0:
        raise ZootomyError(f"reference.refresh_steps must be 0 (never) or more, got {steps}.")


def check_name(name: str) -> None:
    """Refuse a name of a reward model that a metric or a setting could not have.

    Raises:
        ZootomyError: for other characters, or the name of the one without a name.
    """
    if not re.fullmatch(r"\w+", name) or name == REWARD_MODEL:
        raise ZootomyError(
            f"reward_models.{name}: a reward model's name has letters, digits and _ only, and "
            f"is not {REWARD_MODEL!r}."
        )
