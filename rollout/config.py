"""The settings of a rollout engine, and how prompts are made to fit them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from ..registry import ZootomyError, unknown_name
from .knobs import changed, choice
from .sglang_jax.config import SglangJaxConfig
from .transfer.config import TransferConfig
from .types import SamplingParams, whole_number
from .vllm.config import VllmConfig

ENGINES = ("vanilla", "vllm", "sglang_jax")
ENGINES_WITH_KNOBS = ("vllm", "sglang_jax")
# Engines whose arithmetic is the trainer's own; the others drift from it.
EXACT_ENGINES = ("vanilla",)

CacheDtype = Literal["model", "float32", "bfloat16"]
OverlongPrompts = Literal["error", "truncate"]


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """Which engine samples, how, and within which limits.

    Attributes:
        engine: name of the engine.
        temperature: see `SamplingParams`, as the next four.
        top_p: probability mass that is kept.
        top_k: number of tokens that are kept.
        min_p: least probability that is kept, relative to the most likely token.
        max_new_tokens: longest completion in tokens.
        max_prompt_tokens: longest prompt in tokens.
        overlong_prompts: what happens to a longer prompt: `"error"`, or `"truncate"`, which
            keeps its last tokens.
        max_slots: completions that are decoded at the same time; the others wait for a slot. An
            accelerator has room for more.
        prefill_tokens: prompt tokens (padding included) that are read in one pass.
        cache_dtype: precision of the keys and values; `"model"` is that of the model.
        seed: of the noise of calls that bring no seed of their own.
        recommended_correction: where the engine's arithmetic is not the trainer's and the
            algorithm has no correction for that, add the recommended one, with a note.
        transfer: how weights reach an engine in another process.
        vllm: what only that engine has.
        sglang_jax: what only that engine has.

    Raises:
        ZootomyError: an unknown engine or a value outside its range.
    """

    engine: str = "vanilla"
    temperature: float = SamplingParams.temperature
    top_p: float = SamplingParams.top_p
    top_k: int | None = SamplingParams.top_k
    min_p: float = SamplingParams.min_p
    max_new_tokens: int = 256
    max_prompt_tokens: int = 512
    overlong_prompts: OverlongPrompts = "error"
    max_slots: int = 64
    prefill_tokens: int = 8192
    cache_dtype: CacheDtype = "model"
    seed: int = 0
    recommended_correction: bool = True
    transfer: TransferConfig = field(default_factory=TransferConfig)
    vllm: VllmConfig = field(default_factory=VllmConfig)
    sglang_jax: SglangJaxConfig = field(default_factory=SglangJaxConfig)

    def __post_init__(self) -> None:
        check_engine(self.engine)
        whole_number("max_prompt_tokens", self.max_prompt_tokens, 1, "an integer >= 1")
        whole_number("max_slots", self.max_slots, 1, "an integer >= 1")
        whole_number("prefill_tokens", self.prefill_tokens, 1, "an integer >= 1")
        whole_number("seed", self.seed, 0, "an integer >= 0")
        choice("overlong_prompts", self.overlong_prompts, get_args(OverlongPrompts))
        choice("cache_dtype", self.cache_dtype, get_args(CacheDtype))
        self.sampling()
        self._refuse_unread()

    def _refuse_unread(self) -> None:
        """Settings that the chosen engine does not read would have no effect."""
        for name in ENGINES_WITH_KNOBS:
            given = changed(vars(self)[name])
            if given and name != self.engine:
                value = vars(vars(self)[name])[given[0]]
                raise ZootomyError(
                    f"rollout.{name}.{given[0]} is {value!r}, which only the engine {name!r} "
                    f"reads, and rollout.engine is {self.engine!r}; leave it out, or set "
                    f"rollout.engine={name!r}"
                )
        if self.engine == "vllm" and self.prefill_tokens != type(self).prefill_tokens:
            raise ZootomyError(
                f"rollout.prefill_tokens is {self.prefill_tokens}, which vllm does not read; leave "
                "it out, and set rollout.vllm.max_num_batched_tokens instead"
            )

    @property
    def exact(self) -> bool:
        """Whether the engine computes log-probabilities as the trainer does."""
        return self.engine in EXACT_ENGINES

    @property
    def reports_logp(self) -> bool:
        """Whether the engine gives the log-probabilities that it sampled with."""
        return self.engine != "sglang_jax" or self.sglang_jax.logprobs

    def sampling(self, stop_ids: Sequence[int] = ()) -> SamplingParams:
        """These settings as the sampling parameters of a call.

        Args:
            stop_ids: token ids that end a completion, usually the tokenizer's.
        """
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            max_new_tokens=self.max_new_tokens,
            stop_ids=tuple(stop_ids),
        )


def check_engine(name: str) -> None:
    """Refuse an engine that does not exist, with the names of those that do."""
    if name not in ENGINES:
        raise unknown_name("rollout engine", name, ENGINES)


def fit_prompts(
    prompts: Sequence[Sequence[int]], config: RolloutConfig, what: str = "prompt"
) -> list[tuple[int, ...]]:
    """The prompts as the engine and the trainer both see them: within `max_prompt_tokens`.

    Whoever trains on completions applies this before the request, so that both read the same
    token ids; applied twice it changes nothing more.

    Args:
        prompts: token ids, one sequence a prompt.
        config: its `max_prompt_tokens` and `overlong_prompts` decide.
        what: how errors call one of them.

    Returns:
        The prompts; where truncated, the last `max_prompt_tokens` tokens.

    Raises:
        ZootomyError: an empty prompt, or one too long under `overlong_prompts="error"`.
    """
    limit = config.max_prompt_tokens
    fitted = []
    for i, prompt in enumerate(prompts):
        if len(prompt) == 0:
            raise ZootomyError(
                f"{what} {i} is empty; a completion needs at least one token to start from "
                "(a beginning-of-text token, say)"
            )
        if len(prompt) > limit and config.overlong_prompts == "error":
            raise ZootomyError(
                f"{what} {i} has {len(prompt)} tokens; max_prompt_tokens is {limit}. Raise "
                "rollout.max_prompt_tokens, shorten the prompt, or set "
                "rollout.overlong_prompts='truncate' (keeps the last tokens)"
            )
        fitted.append(tuple(prompt[-limit:]))
    return fitted
