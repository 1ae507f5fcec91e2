"""A lane of a call: read prompts, fill slots, decode, hand out what is finished."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from threading import Event

import jax
import numpy as np
from jax.sharding import Mesh

from ..models import to_host
from ..registry import ZootomyError
from .buckets import fit, power_of_two
from .prefill import Prefill
from .scheduler import NARROWER, WORTH_NARROWING, Row, Schedule
from .types import Completion, Finished
from .vanilla_decode import Programs
from .vanilla_state import CallArrays, DecodeState, DecodeWeights, Fill, Progress, PromptBatch
from .weights import Params

SHARE = -1  # decode until a share of the completions has ended, which the device counts
HEADROOM = 16  # tokens that a slot has room for, at least, when decoding begins


class _StoppedError(Exception):
    """Nobody wants the rest."""


class Run:
    """The completions of one lane, from the first prompt read to the last token.

    Args:
        programs: the engine's.
        mesh: that the weights are on, if they are on one.
        params: weights.
        weights: makes them ready for decoding, once for all lanes; called as one of the programs.
        version: of the weights.
        schedule: which completion goes where.
        prompts: most that a lane of the call reads.
        arrays: what the call chose.
        seed: as of `Fill`.
        truncated: whether top-p or top-k is on.
        prefill: how much of prompts is read at a time.
        widths: buckets of prompt tokens that are read.
        held_widths: buckets of prompt tokens that are held while their completions grow.
        rooms: buckets of the tokens that a prompt and a slot have room for.
    """

    def __init__(
        self,
        programs: Programs,
        mesh: Mesh | None,
        params: Params,
        weights: Callable[[], DecodeWeights],
        version: int,
        schedule: Schedule,
        prompts: int,
        arrays: CallArrays,
        seed: np.ndarray,
        *,
        truncated: bool,
        prefill: Prefill,
        widths: tuple[int, ...],
        held_widths: tuple[int, ...],
        rooms: tuple[int, ...],
    ):
        self._programs = programs
        self._params = params
        self._weights = weights
        self._mesh = mesh
        self._version = version
        self._schedule = schedule
        self._prompts = prompts
        self._arrays = arrays
        self._seed = seed
        self._truncated = truncated
        self._prefill = prefill
        self._widths = widths
        self._held_widths = held_widths
        self._rooms = rooms
        self._stopped = Event()

    def stop(self) -> None:
        """End `finished` once the program that runs has ended, from whichever thread."""
        self._stopped.set()

    def finished(self) -> Iterator[Finished]:
        """Completions as they end. The device decodes on while the caller looks at them."""
        with suppress(_StoppedError):
            yield from self._finished()

    def _finished(self) -> Iterator[Finished]:
        schedule = self._schedule
        longest = schedule.longest_unread
        # Read first: it takes longest, and what is small is done beside it.
        batch = self._read()
        with self._launching():
            weights = self._weights()
            state = self._empty_state(longest)
        ready: list[Finished] = []
        seen: Progress | None = None
        while schedule.unfinished:
            while schedule.free and schedule.waiting:
                if not schedule.readable:
                    batch = self._read()
                state = self._fill(state, batch)
            if schedule.busy:
                if seen is None:
                    enough = SHARE if schedule.steady else schedule.free_enough
                    state, seen = self._decode(weights, state, enough)
                following: Progress | None = None
                if schedule.steady:
                    # Waits on the device, which need not wait for the host to look.
                    state, following = self._decode(weights, state, SHARE)
                yield from ready
                ready = self._harvest(seen)
                seen = following
            if schedule.shrinkable:
                with self._launching():
                    state = self._programs.keep(state, schedule.shrink())
        yield from ready

    @contextmanager
    def _launching(self) -> Iterator[None]:
        """In it, programs are launched, and compiled where they are new, by one lane at a time.

        Activations are spread over the mesh that the weights are on, if any.

        Raises:
            _StoppedError: where the run is to end.
        """
        lock = self._programs.launching
        # Who holds the lock may wait for this very thread, if the garbage that it collects
        # meanwhile has this run's stream in it.
        held = False
        while not (held or self._stopped.is_set()):
            held = lock.acquire(timeout=0.1)
        if not held:
            raise _StoppedError
        try:
            with nullcontext() if self._mesh is None else jax.set_mesh(self._mesh):
                yield
        finally:
            lock.release()

    def _read(self) -> PromptBatch:
        """Prefill the next prompts, as many as the budget of tokens holds."""
        schedule, budget = self._schedule, self._prefill.tokens
        width = fit(schedule.longest_unread, self._widths)
        fitting = max(1, power_of_two(budget // width))
        largest = min(fitting, 1 << (self._prompts - 1).bit_length())
        prompts = schedule.next_prompts(largest, width)
        fewer = max(1, largest // NARROWER)
        pays = (largest - fewer) * width >= WORTH_NARROWING
        rows = fewer if pays and len(prompts) <= fewer else largest
        piece = self._prefill.piece(rows, width)
        tokens = np.zeros((rows, width), np.int32)
        lengths = np.ones(rows, np.int32)
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt)] = prompt
            lengths[row] = len(prompt)
        with self._launching():
            return self._programs.read(self._params, tokens, lengths, piece=piece)

    def _empty_state(self, longest: int) -> DecodeState:
        """Slots for completions of prompts of up to `longest` tokens."""
        schedule, prompts, width = self._schedule, 0, 0
        if schedule.apart:
            prompts, width = schedule.held, fit(longest, self._held_widths)
            room = self._room(width, 0)
        else:
            room = self._room(0, longest, at_least=fit(longest, self._widths))
        return self._programs.empty_state(
            prompts=prompts, width=width, slots=schedule.slots, capacity=room
        )

    def _fill(self, state: DecodeState, batch: PromptBatch) -> DecodeState:
        schedule = self._schedule
        fill = Fill(
            source=np.full(schedule.held, -1, np.int32),
            length=np.ones(schedule.held, np.int32),
            owner=np.zeros((schedule.slots, 2), np.int32),
            seed=self._seed,
        )
        for slot, row in schedule.assign():
            fill.source[slot // schedule.shared] = row.batch_row
            fill.length[slot // schedule.shared] = len(schedule.prompts[row.request])
            fill.owner[slot] = row.request, row.completion
        with self._launching():
            return self._programs.fill(state, batch, fill, self._arrays, truncated=self._truncated)

    def _room(self, width: int, filled: int, *, at_least: int = 0) -> int:
        """How many tokens slots should have room for.

        Args:
            width: tokens of the prompts that are held apart.
            filled: tokens in the fullest slot.
            at_least: tokens that there must be room for.
        """
        return fit(max(width + filled + HEADROOM, at_least), self._rooms) - width

    def _decode(
        self, weights: DecodeWeights, state: DecodeState, free_enough: int
    ) -> tuple[DecodeState, Progress]:
        width = 0 if state.prompts is None else state.prompts.slots.capacity
        room = self._room(width, self._schedule.furthest)
        with self._launching():
            if room > state.cache.capacity:
                state = self._programs.grow(state, capacity=room)
            return self._programs.decode(
                weights,
                state,
                self._arrays,
                np.asarray(free_enough, np.int32),
                truncated=self._truncated,
            )

    def _harvest(self, seen: Progress) -> list[Finished]:
        """Take finished completions out of their slots."""
        active, stopped, count = to_host((seen.active, seen.stopped, seen.count))
        done = self._schedule.update(active, count)
        if not done:
            return []
        tokens, logps = to_host((seen.tokens, seen.logps))
        found = []
        for slot, row in done:
            length = count[slot]
            completion = Completion(
                tokens=tokens[slot, :length].copy(),
                logp=logps[slot, :length].copy(),
                stop_reason="stop" if stopped[slot] else "length",
                version=self._version,
            )
            self._refuse_nan(completion, row)
            self._schedule.finish(slot)
            found.append(Finished(row.request, row.completion, completion))
        return found

    def _refuse_nan(self, completion: Completion, row: Row) -> None:
        wrong = np.flatnonzero(~np.isfinite(completion.logp))
        if wrong.size:
            raise ZootomyError(
                f"the model (weights version {self._version}) gave a logp of "
                f"{completion.logp[wrong[0]]} for request {row.request}, completion "
                f"{row.completion}, token {wrong[0]}; its weights are likely not finite"
            )
