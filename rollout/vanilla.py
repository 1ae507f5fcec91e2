"""The vanilla engine: pure JAX, continuous batching in slots, a prompt read once for its group."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ..models import Decoder
from ..registry import ZootomyError
from .buckets import fit, ladder, slot_ladder
from .checks import CLOSED, SEED, check_positions, check_requests
from .config import RolloutConfig
from .sampling import sampling_arrays
from .scheduler import Row, Schedule
from .types import Completion, Request, SamplingParams, Weights, whole_number
from .vanilla_decode import CallArrays, DecodeState, Fill, Programs, PromptBatch
from .weights import named_params, placed, replace_params

SMALLEST_WIDTH = 16  # prompt tokens
SMALLEST_READ = 64  # cache slots that attention reads
HEADROOM = 16  # tokens that a decode program can add, at least, before a wider one takes over
_OWN_NOISE = 0x5EED  # parts the noise of calls without a seed from that of calls with one


class VanillaEngine:
    """Samples with the model itself, on its own device.

    Prompts are padded on the right and read once for all their completions. Completions grow in
    slots; a finished one makes room for the next that waits. The noise of a token depends on the
    seed, the request's and the completion's index and the token's position alone, so the tokens
    do not depend on what else is in the batch (up to the rounding of the matrix products).

    Args:
        config: limits and settings.
        model: gives structure and first weights, which are shared and not copied.
        version: of those weights.

    Raises:
        ZootomyError: if prompt and completion may exceed the positions of the model.
    """

    def __init__(self, config: RolloutConfig, model: Decoder, *, version: int = 0):
        total = check_positions(config, model.config.max_positions)
        self.config = config
        self._vocabulary = model.config.vocab_size
        self._widths = ladder(SMALLEST_WIDTH, config.max_prompt_tokens)
        self._reads = ladder(SMALLEST_READ, total)
        self._slots = slot_ladder(config.max_slots)
        dtype = model.dtype if config.cache_dtype == "model" else jnp.dtype(config.cache_dtype)
        self._programs = Programs(
            model, cache_dtype=dtype, capacity=total, max_new_tokens=config.max_new_tokens
        )
        self._params: nnx.State | None = placed(nnx.state(model, nnx.Param))
        self._version = version
        self._calls = 0

    @property
    def version(self) -> int:
        """The version of the weights that sample."""
        return self._version

    @property
    def params(self) -> nnx.State | None:
        """The weights that sample; None when closed."""
        return self._params

    @property
    def adapted(self) -> bool:
        """Whether its model has adapters, so that these alone can be sent."""
        return bool(jax.tree.leaves(nnx.filter_state(self._live_params(), nnx.LoRAParam)))

    @property
    def compilations(self) -> dict[str, int]:
        """Programs compiled so far: how many to read, fill, decode and keep fewer slots."""
        return dict(self._programs.compiled)

    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams, seed: int | None = None
    ) -> list[list[Completion]]:
        """Complete every request; see `RolloutEngine`.

        Raises:
            ZootomyError: a wrong prompt or stop id, a longer completion than the engine was made
                for, weights that are gone, or a model that gives NaN.
        """
        # An update from another thread does not reach a call that has begun.
        params, version = self._live_params(), self._version
        prompts = check_requests(requests, sampling, self.config, self._vocabulary)
        if not requests:
            return []
        arrays = CallArrays(
            sampling=sampling_arrays(sampling),
            seed=self._key(seed),
            limit=np.asarray(sampling.max_new_tokens, np.int32),
        )
        schedule = Schedule(
            prompts,
            [request.n for request in requests],
            slots=fit(sum(request.n for request in requests), self._slots),
            limit=sampling.max_new_tokens,
        )
        state = self._programs.empty_state(schedule.slots)
        batch: PromptBatch | None = None
        while schedule.unfinished:
            while schedule.free and schedule.waiting:
                if not schedule.readable:
                    batch = self._read(params, schedule)
                assert batch is not None
                state = self._fill(state, batch, schedule, arrays, sampling.truncated)
                self._harvest(state, schedule, version)
            if schedule.busy:
                state = self._programs.decode(
                    params,
                    state,
                    arrays,
                    np.asarray(schedule.free_enough, np.int32),
                    attend_to=fit(schedule.furthest + 1 + HEADROOM, self._reads),
                    truncated=sampling.truncated,
                )
                self._harvest(state, schedule, version)
            if schedule.shrinkable:
                state = self._programs.keep(state, schedule.shrink())
        return schedule.completions

    def update_weights(self, weights: Weights, version: int) -> None:
        """Sample from these weights from now on; see `RolloutEngine`.

        Nothing is compiled again, and no keys or values outlive a call. Arrays of the engine's
        dtype and sharding are shared with the caller, so a trainer that donates its parameters to
        its next step sends the new ones before the next call.
        """
        if self._params is None:
            raise ZootomyError(CLOSED)
        version = whole_number("version", version, 0, "an integer >= 0")
        self._params = replace_params(self._params, weights)
        self._version = version

    def close(self) -> None:
        """Let go of the weights."""
        self._params = None

    def _live_params(self) -> nnx.State:
        if self._params is None:
            raise ZootomyError(CLOSED)
        for path, array in named_params(self._params).items():
            if array.is_deleted():
                raise ZootomyError(
                    f"the engine's weights (version {self._version}) were donated or deleted, "
                    f"{path!r} first; call update_weights with the new ones"
                )
        return self._params

    def _key(self, seed: int | None) -> jax.Array:
        if seed is not None:
            return _key_of(whole_number("seed", seed, 0, SEED))
        self._calls += 1
        own = jax.random.fold_in(_key_of(self.config.seed), _OWN_NOISE)
        return jax.random.fold_in(own, self._calls)

    def _read(self, params: nnx.State, schedule: Schedule) -> PromptBatch:
        """Prefill the next prompts, as many as the budget of tokens holds."""
        width = fit(schedule.longest_prompt, self._widths)
        budget = max(1, self.config.prefill_tokens // width)
        largest = 1 << (min(budget, len(schedule.prompts)) - 1).bit_length()
        rows = largest if largest <= budget else largest // 2
        tokens = np.zeros((rows, width), np.int32)
        lengths = np.ones(rows, np.int32)
        for row, prompt in enumerate(schedule.next_prompts(rows)):
            tokens[row, : len(prompt)] = prompt
            lengths[row] = len(prompt)
        return self._programs.read(params, tokens, lengths)

    def _fill(
        self,
        state: DecodeState,
        batch: PromptBatch,
        schedule: Schedule,
        arrays: CallArrays,
        truncated: bool,
    ) -> DecodeState:
        fill = Fill(
            source=np.full(schedule.slots, -1, np.int32),
            length=np.ones(schedule.slots, np.int32),
            owner=np.zeros((schedule.slots, 2), np.int32),
        )
        for slot, row in schedule.assign():
            fill.source[slot] = row.batch_row
            fill.length[slot] = len(schedule.prompts[row.request])
            fill.owner[slot] = row.request, row.completion
        return self._programs.fill(state, batch, fill, arrays, truncated=truncated)

    def _harvest(self, state: DecodeState, schedule: Schedule, version: int) -> None:
        """Take finished completions out of their slots."""
        active, stopped, count, position = jax.device_get(
            (state.active, state.stopped, state.count, state.position)
        )
        done = schedule.update(active, position, count)
        if not done:
            return
        tokens, logps = jax.device_get((state.tokens, state.logps))
        for slot, row in done:
            length = count[slot]
            completion = Completion(
                tokens=tokens[slot, :length].copy(),
                logp=logps[slot, :length].copy(),
                stop_reason="stop" if stopped[slot] else "length",
                version=version,
            )
            self._refuse_nan(completion, row)
            schedule.finish(slot, completion)

    def _refuse_nan(self, completion: Completion, row: Row) -> None:
        wrong = np.flatnonzero(~np.isfinite(completion.logp))
        if wrong.size:
            raise ZootomyError(
                f"the model (weights version {completion.version}) gave a logp of "
                f"{completion.logp[wrong[0]]} for request {row.request}, completion "
                f"{row.completion}, token {wrong[0]}; its weights are likely not finite"
            )


def _key_of(seed: int) -> jax.Array:
    """A typed key from an integer of any size, 32 bits at a time."""
    key = jax.random.key(seed & 0xFFFFFFFF)
    while seed := seed >> 32:
        key = jax.random.fold_in(key, seed & 0xFFFFFFFF)
    return key
