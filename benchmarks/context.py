"""What the measures of a run share: the workers that are up, the inputs, the machine's limits."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cases
import limits
import numpy as np
from children import PEERS, Child, Children, Contestant, PeerError
from counts import Shape
from rows import LEFT_OUT, OURS

CLOSE = 1e-4  # log-probabilities of different libraries may differ by less


class Bench:
    """A run of the benchmarks.

    Args:
        folder: where it writes.
        environments: where the peers' virtual environments are.
        peers: which of them take part.
        rounds: how often each measure is taken.
        cores: threads a worker may use.
    """

    def __init__(
        self, folder: Path, environments: Path, peers: tuple[str, ...], rounds: int, cores: int
    ):
        self.work = folder / "work"
        self.work.mkdir(parents=True, exist_ok=True)
        self.rounds, self.cores, self.peers = rounds, cores, peers
        self.children = Children(Path(sys.executable), environments, cores, folder / "logs")
        self.versions: dict[str, str] = {}
        self.differences: dict[str, dict[str, float | str]] = {}
        self._up: dict[tuple[str, int], Child | PeerError] = {}
        self._yardsticks: dict[int, list[limits.Yardstick]] = {}

    def say(self, text: str) -> None:
        """A line on the screen."""
        print(text, flush=True)

    def model(self, size: Shape) -> str:
        """The folder of the model of a size."""
        folder = self.work / f"model-{size.layers}x{size.hidden}-{size.vocab}"
        return str(cases.write_model(folder, size))

    def shared_model(self, vocab: int) -> str:
        """The folder of the shared model with a vocabulary."""
        return self.model(cases.shape(vocab))

    def prompts(self, vocab: int, count: int = cases.PROMPTS) -> str:
        """A file of prompts."""
        path = self.work / f"prompts-{vocab}-{count}.npz"
        return str(cases.write_prompts(path, vocab, count))

    def batch(
        self,
        vocab: int,
        prompts: int = cases.PROMPTS,
        group: int = cases.GROUP,
        completion: int = cases.COMPLETION,
    ):
        """A file of sequences."""
        path = self.work / f"batch-{vocab}-{prompts}x{group}-{completion}.npz"
        return cases.write_batch(path, vocab, prompts * group, completion=completion, group=group)

    def start(self, name: str, vocab: int, variables: Mapping[str, str] | None = None) -> Child:
        """A new worker that has loaded the shared model; it is kept for later measures.

        Raises:
            PeerError: if it cannot be.
        """
        try:
            child = self.children.start(name, variables)
            answer = child.ask("setup", model=self.shared_model(vocab))
        except PeerError as error:
            self._up[name, vocab] = error
            raise
        self.versions[name] = answer["version"]
        self._up[name, vocab] = child
        return child

    def child(self, name: str, vocab: int) -> Child:
        """A worker, started if need be.

        Raises:
            PeerError: if it cannot be had, or computes something else.
        """
        if (name, vocab) not in self._up:
            self.say(f"    starting {name}")
            self.start(name, vocab)
        found = self._up[name, vocab]
        if isinstance(found, PeerError):
            raise found
        return found

    def contestant(
        self, label: str, name: str, vocab: int, rounds: int | None = None, **request: Any
    ) -> Contestant:
        """A column of a measure; one that cannot take part says why."""
        if name != OURS and name not in self.peers:
            return Contestant(label, None, request, failed=LEFT_OUT)
        try:
            return Contestant(label, self.child(name, vocab), request, rounds)
        except PeerError as error:
            return Contestant(label, None, request, failed=str(error))

    def check(self, vocab: int) -> None:
        """Compare everyone's log-probabilities with ours; who differs is out.

        What was found is in `differences`, and on the screen.
        """
        found: dict[str, float | str] = {}
        batch = str(self.batch(vocab).path)
        ours = self._logps(OURS, vocab, batch)
        for name in (name for name in PEERS if name in self.peers):
            try:
                theirs = self._logps(name, vocab, batch)
            except PeerError as error:
                found[name] = str(error)
                continue
            found[name] = float(np.abs(theirs - ours).max())
            if not found[name] < CLOSE:
                reason = f"its log-probabilities differ from ours by {found[name]:.1e}"
                self._up[name, vocab] = PeerError(reason)
        self.differences[str(vocab)] = found
        for name, value in found.items():
            text = value if isinstance(value, str) else f"at most {value:.1e} nats from ours"
            self.say(f"    log-probabilities of {name}: {text}")

    def yardstick(self, vocab: int) -> limits.Yardstick:
        """What measures the machine's limits at the shapes of the shared model, for one measure."""
        workers = []
        for name in (OURS, "torch"):
            one = self.contestant(name, name, vocab)
            workers += [one.child] if one.child is not None else []
        made = limits.Yardstick(cases.shape(vocab), workers, self.cores)
        self._yardsticks.setdefault(vocab, []).append(made)
        return made

    @property
    def measured_limits(self) -> dict[str, dict[str, float]]:
        """Medians of all that was measured of them, by vocabulary."""
        found = {
            str(vocab): [one for made in several for one in made.found]
            for vocab, several in self._yardsticks.items()
        }
        return {vocab: limits.typical(all_).as_dict() for vocab, all_ in found.items() if all_}

    def end_all(self) -> None:
        """End the workers that are kept."""
        for found in self._up.values():
            if isinstance(found, Child) and found.alive:
                self.children.end(found)
        self._up.clear()

    def _logps(self, name: str, vocab: int, batch: str) -> np.ndarray:
        out = self.work / f"logps-{name}-{vocab}.npy"
        self.child(name, vocab).ask("logps", batch=batch, out=str(out))
        return np.load(out)
