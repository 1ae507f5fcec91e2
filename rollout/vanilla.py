"""The vanilla engine: pure JAX, continuous batching in slots, a prompt read once for its group."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ..models import Decoder, parts_on
from ..registry import ZootomyError
from .buckets import ladder
from .checks import CLOSED, OWN_NOISE, SEED, check_positions, check_requests
from .config import RolloutConfig
from .lanes import Places, cores, deal, lane_rows
from .prefill import Prefill
from .sampling import sampling_arrays
from .scheduler import Schedule
from .streaming import in_background, in_groups
from .types import Completion, Finished, Request, SamplingParams, Weights, whole_number
from .vanilla_decode import Programs
from .vanilla_run import Run
from .vanilla_state import CallArrays
from .weights import Params, adapters_among, mesh_of, named_params, placed, replace_params

SMALLEST_WIDTH = 16  # prompt tokens
# Tokens a slot. From half of it, short completions take 1.5% less time, and 1 s to compile for.
SMALLEST_ROOM = 128
# Tokens that are held of a prompt: decoding is compiled for each of these widths.
SMALLEST_HELD = 32
# Of the scores of prompts, of all heads of a layer and of all lanes at a time: more leave a CPU's
# caches, and their softmax waits for memory.
CACHED_SCORES = 2**23  # bytes


class VanillaEngine:
    """Samples with the model itself, where its weights are.

    Prompts are padded on the right and read once for all their completions. Completions grow in
    slots; a finished one makes room for the next that waits. The noise of a token depends on the
    seed, the request's and the completion's index and the token's position alone, so the tokens
    do not depend on what else is in the batch (up to the rounding of the matrix products). Where
    the weights lie on a mesh, slots are spread over its `data` and `fsdp`, heads over `tensor`. On
    a CPU the requests of a large call are dealt to lanes; see `lanes`.

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
        self._held_widths = ladder(SMALLEST_HELD, config.max_prompt_tokens)
        self._rooms = ladder(SMALLEST_ROOM, total)
        dtype = model.dtype if config.cache_dtype == "model" else jnp.dtype(config.cache_dtype)
        params = placed(nnx.to_pure_dict(nnx.state(model, nnx.Param)))
        self._mesh = mesh_of(params)
        self._parts = 1 if self._mesh is None else parts_on(self._mesh, "rows")
        devices = {device for x in jax.tree.leaves(params) for device in x.devices()}
        # Lanes and other layouts of the weights pay on CPUs; elsewhere a copy costs more than it
        # saves. Nor do weights that are spread over several devices become one matrix.
        alone_on_cpu = len(devices) == 1 and devices.pop().platform == "cpu"
        self._most_lanes = cores() if alone_on_cpu else 1
        heads = model.config.num_heads
        self._scored = CACHED_SCORES // (4 * heads) if alone_on_cpu else None
        self._lane_rows = lane_rows(params, model.config.num_layers)
        self._programs = Programs(
            model,
            cache_dtype=dtype,
            max_new_tokens=config.max_new_tokens,
            fused=alone_on_cpu,
        )
        self._params: Params | None = params
        # Taken apart once for all calls, each of which looks at every array.
        self._arrays = jax.tree.leaves(params)
        self._version = version
        self._calls = 0

    @property
    def version(self) -> int:
        """The version of the weights that sample."""
        return self._version

    @property
    def params(self) -> Params | None:
        """The weights that sample, in nested dicts; None when closed."""
        return self._params

    @property
    def adapted(self) -> bool:
        """Whether its model has adapters, so that these alone can be sent."""
        return bool(adapters_among(named_params(self._live_params())))

    @property
    def compilations(self) -> dict[str, int]:
        """Programs compiled so far, by what they do: prepare, read, fill, grow, decode, keep."""
        return dict(self._programs.compiled)

    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams, seed: int | None = None
    ) -> list[list[Completion]]:
        """Complete every request; see `RolloutEngine`.

        Raises:
            ZootomyError: a wrong prompt or stop id, a longer completion than the engine was made
                for, weights that are gone, or a model that gives NaN.
        """
        return in_groups(self._run(requests, sampling, seed, early=False), requests)

    def stream(
        self, requests: Sequence[Request], sampling: SamplingParams, seed: int | None = None
    ) -> Iterator[Finished]:
        """Hand the completions of `generate` out as they end; see `StreamingEngine`.

        Raises:
            ZootomyError: as `generate`, before anything is sampled where it can be known.
        """
        return self._run(requests, sampling, seed, early=True)

    def _run(
        self,
        requests: Sequence[Request],
        sampling: SamplingParams,
        seed: int | None,
        *,
        early: bool,
    ) -> Iterator[Finished]:
        params = self._live_params()
        prompts = check_requests(requests, sampling, self.config, self._vocabulary)
        if not requests:
            return iter(())
        counts = [request.n for request in requests]
        places = self._places(counts, [len(prompt) for prompt in prompts])
        arrays = CallArrays(
            sampling=sampling_arrays(sampling),
            limit=np.asarray(sampling.max_new_tokens, np.int32),
        )
        words = self._seed_words(seed)
        weights = functools.cache(lambda: self._programs.prepare(params))
        runs = [
            Run(
                self._programs,
                self._mesh,
                params,
                weights,
                self._version,
                Schedule(
                    prompts,
                    counts,
                    lane,
                    slots=places.slots,
                    shared=places.shared,
                    limit=sampling.max_new_tokens,
                    early=early,
                ),
                max(len(lane) for lane in places.lanes),
                arrays,
                words,
                truncated=sampling.truncated,
                prefill=self._prefill(len(places.lanes)),
                widths=self._widths,
                held_widths=self._held_widths,
                rooms=self._rooms,
            )
            for lane in places.lanes
        ]
        return runs[0].finished() if len(runs) == 1 else _side_by_side(runs)

    def _prefill(self, lanes: int) -> Prefill:
        """How much of prompts each of some lanes reads at a time."""
        pairs = None if self._scored is None else self._scored // lanes
        return Prefill(max(1, self.config.prefill_tokens // lanes), pairs)

    def _places(self, counts: Sequence[int], lengths: Sequence[int]) -> Places:
        return deal(
            counts,
            lengths,
            max_slots=self.config.max_slots,
            most=self._most_lanes,
            rows=self._lane_rows,
            parts=self._parts,
        )

    def update_weights(self, weights: Weights, version: int) -> None:
        """Sample from these weights from now on; see `RolloutEngine`.

        Nothing is compiled again, and no keys or values outlive a call. Arrays of the engine's
        dtype and sharding are shared with the caller, so a trainer that donates its parameters to
        its next step sends the new ones before the next call, and lets a stream that runs end.
        """
        if self._params is None:
            raise ZootomyError(CLOSED)
        version = whole_number("version", version, 0, "an integer >= 0")
        self._params = replace_params(self._params, weights)
        self._arrays = jax.tree.leaves(self._params)
        self._version = version

    def close(self) -> None:
        """Let go of the weights."""
        self._params, self._arrays = None, []

    def _live_params(self) -> Params:
        if self._params is None:
            raise ZootomyError(CLOSED)
        if any(array.is_deleted() for array in self._arrays):
            named = named_params(self._params).items()
            first = next(path for path, array in named if array.is_deleted())
            raise ZootomyError(
                f"the engine's weights (version {self._version}) were donated or deleted, "
                f"{first!r} first; call update_weights with the new ones"
            )
        return self._params

    def _seed_words(self, seed: int | None) -> np.ndarray:
        if seed is not None:
            return _words(whole_number("seed", seed, 0, SEED))
        self._calls += 1
        return np.append(_words(self.config.seed), np.array([OWN_NOISE, self._calls], np.uint32))


def _side_by_side(runs: Sequence[Run]) -> Iterator[Finished]:
    """The completions of all lanes; nothing starts before the first is asked for."""

    def stop() -> None:
        for run in runs:
            run.stop()

    yield from in_background([run.finished() for run in runs], stop, "zootomy-lane")


def _words(seed: int) -> np.ndarray:
    """An integer of any size, 32 bits a word, the lowest first."""
    words = [seed & 0xFFFFFFFF]
    while seed := seed >> 32:
        words.append(seed & 0xFFFFFFFF)
    return np.array(words, np.uint32)
