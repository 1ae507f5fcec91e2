"""A small reward model from pairs, for the example of PPO with a critic and a reward model.

It learns which of two answers to a sum is better: one that is worked out to the end, or one that
stops half-way or is wrong. What is left is a Hugging Face folder of a sequence classifier:

    python examples/reward_model.py --folder runs/reward-model
    zootomy train --config examples/ppo.yaml --folder runs/ppo
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import zootomy
from flax import nnx
from zootomy.learners.run_config import read_yaml
from zootomy.models import RewardModel, make_model, save_model
from zootomy.tasks import Task, make_task

WIDTH = 20  # prompt and completion, in tokens


@dataclass(frozen=True)
class Pair:
    """Two answers to one prompt.

    Attributes:
        prompt: e.g. `7+5+8+2=`.
        chosen: the better answer, e.g. `12,20,22`.
        rejected: the worse one, e.g. `12,20` or `12,20,29`.
    """

    prompt: str
    chosen: str
    rejected: str


def make_pairs(task: Task, count: int, seed: int) -> list[Pair]:
    """Pairs about the task's training problems; every other rejected answer stops too early."""
    rng = np.random.default_rng(seed)
    pairs = []
    for index in rng.integers(0, len(task.train), count):
        example = task.train[int(index)]
        chain = [str(link) for link in example.columns["chain"]]
        if rng.random() < 0.5:
            rejected = chain[: rng.integers(1, len(chain))]
        else:
            rejected = [*chain[:-1], str(int(chain[-1]) + int(rng.integers(1, 9)))]
        pairs.append(Pair(str(example.prompt), ",".join(chain), ",".join(rejected)))
    return pairs


def encode(task: Task, pairs: list[Pair]) -> tuple[np.ndarray, np.ndarray]:
    """`(tokens [2B, WIDTH], last [2B])`, the chosen answers first; all end with the stop token."""
    stop = task.tokenizer.stop_ids[0]
    rows = [
        [*task.tokenizer.encode_prompt(pair.prompt), *task.tokenizer.encode(answer), stop]
        for answers in ([p.chosen for p in pairs], [p.rejected for p in pairs])
        for pair, answer in zip(pairs, answers, strict=True)
    ]
    tokens = np.zeros((len(rows), WIDTH), np.int32)
    for row, ids in zip(tokens, rows, strict=True):
        row[: len(ids)] = ids
    return tokens, np.array([len(ids) - 1 for ids in rows], np.int32)


def scores(model: RewardModel, tokens: jax.Array, last: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`([B], [B])` of the chosen and of the rejected answers."""
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    chosen, rejected = jnp.split(model(tokens, positions, last), 2)
    return chosen, rejected


def train(
    task: Task, *, steps: int, batch: int, preset: str, seed: int
) -> tuple[RewardModel, float]:
    """A reward model, and the share of held-out pairs that it orders rightly."""
    bradley_terry = zootomy.get("reward_loss", "bradley_terry")
    body = make_model(preset, vocab_size=task.tokenizer.vocab_size, seed=seed)
    model = RewardModel.from_decoder(body, rngs=nnx.Rngs(seed))
    schedule = optax.warmup_cosine_decay_schedule(0.0, 2e-3, max(1, steps // 20), steps)
    optimizer = nnx.Optimizer(model, optax.adamw(schedule), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, tokens, last):
        def loss(model):
            # The term that centers scores keeps them near 0.
            return bradley_terry(*scores(model, tokens, last), None, center=0.01).mean()

        value, gradient = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradient)
        return value

    for number in range(steps):
        value = step(model, optimizer, *encode(task, make_pairs(task, batch, seed + number)))
        if number % max(1, steps // 5) == 0:
            print(f"step {number}: {float(value):.3f} nats a pair")
    tokens, last = encode(task, make_pairs(task, 256, seed + steps))
    chosen, rejected = nnx.jit(scores)(model, tokens, last)
    return model, float(jnp.mean(chosen > rejected))


def main(arguments: list[str] | None = None) -> None:
    """Train a reward model for the task of `examples/ppo.yaml`, and write its folder."""
    parser = argparse.ArgumentParser(description="a reward model for examples/ppo.yaml")
    parser.add_argument("--config", default=str(Path(__file__).with_name("ppo.yaml")))
    parser.add_argument("--folder", default="runs/reward-model")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--preset", default="small")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    task = make_task(read_yaml(given.config)[1].task)
    model, share = train(
        task, steps=given.steps, batch=given.batch, preset=given.preset, seed=given.seed
    )
    save_model(model, given.folder, overwrite=True)
    print(f"{100 * share:.0f}% of 256 further pairs are ordered rightly; weights: {given.folder}")


if __name__ == "__main__":
    main()
