"""The library itself, asked like a peer."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from protocol import LEARNING_RATE, load_arrays, product_rates, reward, serve, timed


class NumberTokenizer:
    """Token i is the word `i`; nothing stops."""

    def __init__(self, vocab_size: int):
        self.vocab_size = vocab_size
        self.stop_ids: tuple[int, ...] = ()
        self.pad_id = 0

    def encode(self, text: str) -> list[int]:
        """The numbers in a text."""
        return [int(word) for word in text.split()]

    encode_prompt = encode

    def decode(self, ids: Sequence[int]) -> str:
        """Numbers with spaces between."""
        return " ".join(map(str, ids))


class Worker:
    """One model folder and what is made of it."""

    def setup(self, model: str, cache: str = "") -> dict[str, Any]:
        """Import and load.

        Args:
            model: a Hugging Face folder.
            cache: a folder for compiled programs; empty: nothing is kept.
        """
        import jax

        if cache:
            jax.config.update("jax_compilation_cache_dir", cache)
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
        import zootomy
        from zootomy.models import load_model

        self.z = zootomy
        self.jax = jax
        self.model = load_model(model)
        self.engines: dict[Any, Any] = {}
        self.clusters: dict[Any, Any] = {}
        self.learners: dict[Any, Any] = {}
        return {"version": f"jax {jax.__version__}"}

    def generate(
        self,
        prompts: str,
        group: int,
        new_tokens: int,
        seed: int = 0,
        stop_ids: Sequence[int] = (),
        slots: int = 64,
    ) -> dict[str, Any]:
        """Sample completions; their log-probabilities come with them."""
        from zootomy.rollout import Request, RolloutConfig, make_engine

        ids = load_arrays(prompts)["prompts"].tolist()
        key = (len(ids[0]), new_tokens, slots)
        if key not in self.engines:
            config = RolloutConfig(
                max_prompt_tokens=len(ids[0]), max_new_tokens=new_tokens, max_slots=slots
            )
            self.engines[key] = config, make_engine(config, self.model)
        config, engine = self.engines[key]
        requests = [Request(tuple(prompt), group) for prompt in ids]
        sampling = config.sampling(tuple(stop_ids))
        seconds, found = timed(lambda: engine.generate(requests, sampling, seed))
        lengths = [len(one.tokens) for completions in found for one in completions]
        return {"seconds": seconds, "tokens": sum(lengths), "lengths": lengths}

    def logps(self, batch: str, out: str = "") -> dict[str, Any]:
        """The reference pass: log-probabilities of given completions."""
        import numpy as np
        from zootomy.clusters import Role

        cluster, sequences, _ = self._batch(batch)
        seconds, found = timed(
            lambda: cluster.log_probs(Role.REFERENCE, sequences, temperature=1.0)["logp"]
        )
        if out:
            np.save(out, found)
        return {"seconds": seconds}

    def train_step(self, batch: str) -> dict[str, Any]:
        """Forward, backward and AdamW on the objective of `grpo`."""
        from zootomy.clusters import Role

        cluster, sequences, part = self._batch(batch)
        loss = _grpo_loss()
        seconds, result = timed(
            lambda: cluster.update(
                Role.ACTOR, sequences, part, loss, coefficients={}, temperature=1.0
            )
        )
        return {"seconds": seconds, "loss": result.loss}

    def update_weights(self) -> dict[str, Any]:
        """New weights into an engine, until a program could read them."""
        import jax
        from flax import nnx

        engine = next(iter(self.engines.values()))[1]
        fresh = jax.tree.map(lambda x: x + 0, nnx.state(self.model, nnx.Param))
        jax.block_until_ready(fresh)
        seconds, _ = timed(lambda: engine.update_weights(fresh, engine.version + 1))
        return {"seconds": seconds}

    def grpo_step(self, prompts: str, group: int, new_tokens: int) -> dict[str, Any]:
        """A step of the learner, from prompts to new weights in the engine."""
        key = (prompts, group, new_tokens)
        if key not in self.learners:
            self.learners[key] = self._learner(prompts, group, new_tokens)
        learner = self.learners[key]
        seconds, report = timed(learner.step)
        tokens = report.metrics["tokens_per_second"] * report.metrics["time/step"]
        spans = {k: v for k, v in report.metrics.items() if k.startswith("time/")}
        return {"seconds": seconds, "tokens": round(tokens), "spans": spans}

    def programs(self) -> dict[str, Any]:
        """XLA's analysis of every program that this process has compiled: MiB by name."""
        found: dict[str, dict[str, float]] = {}
        for program in self.jax.devices()[0].client.live_executables():
            name = program.hlo_modules()[0].name
            stats = program.get_compiled_memory_stats()
            parts = {
                "temporary": stats.temp_size_in_bytes / 2**20,
                "arguments": stats.argument_size_in_bytes / 2**20,
                "outputs": stats.output_size_in_bytes / 2**20,
                "shared": stats.alias_size_in_bytes / 2**20,
            }
            if name not in found or parts["temporary"] > found[name]["temporary"]:
                found[name] = parts
        return {"programs": found}

    def matmul_rates(self, shapes: Sequence[Sequence[int]], each: float) -> dict[str, Any]:
        """GFLOP/s of float32 products [M, K] x [K, N] in XLA, the best of several."""
        import jax
        import jax.numpy as jnp

        dot = jax.jit(jnp.dot)
        found = product_rates(shapes, each, jnp.ones, lambda a, b: dot(a, b).block_until_ready())
        return {"rates": found}

    def _batch(self, path: str) -> tuple[Any, Any, Any]:
        """A cluster whose rows fit the batch, its sequences, and what its objective reads."""
        import numpy as np
        from zootomy.clusters import Cluster, ClusterConfig, OptimizerConfig, Sequences
        from zootomy.learners.arrays import Experience

        if path in self.clusters:
            return self.clusters[path]
        arrays = load_arrays(path)
        prompts, completions = arrays["prompts"], arrays["completions"]
        rows, width = completions.shape
        length = prompts.shape[1] + width
        config = ClusterConfig(micro_rows=rows, row_length=length, sequences_per_row=1)
        cluster = Cluster(
            config,
            actor=self.model,
            optimizer=OptimizerConfig(learning_rate=LEARNING_RATE),
            total_steps=10_000,
            max_prompt_tokens=prompts.shape[1],
            group_size=rows // len(np.unique(prompts, axis=0)),
            reference="snapshot",
        )
        sequences = Sequences(prompts, completions, width)
        mask = np.ones((rows, width), np.float32)
        logp = cluster.log_probs("reference", sequences, temperature=1.0)["logp"]  # type: ignore[arg-type]
        experience = Experience(
            mask=mask,
            counted=mask,
            group_ids=np.arange(rows, dtype=np.int32),
            advantages=mask * arrays["advantages"][:, None],
            returns=mask,
            correction=None,
            old_logp=None,
            rollout_logp=None,
            ref_logp=logp,
            old_values=None,
        )
        weights = mask / (rows * width)
        self.clusters[path] = cluster, sequences, (experience, weights)
        return self.clusters[path]

    def _learner(self, prompts: str, group: int, new_tokens: int) -> Any:
        from zootomy.clusters import Cluster, ClusterConfig, OptimizerConfig
        from zootomy.learners import Learner
        from zootomy.learners.batch import BatchConfig
        from zootomy.rollout import RolloutConfig, make_engine
        from zootomy.tasks import Example, RewardFunction, Task

        ids = load_arrays(prompts)["prompts"]
        count, length = ids.shape
        tokenizer = NumberTokenizer(self.model.config.vocab_size)
        task = Task(
            name="numbers",
            train=[Example(tokenizer.decode(prompt.tolist())) for prompt in ids],
            eval=[],
            rewards=(RewardFunction("length", lambda prompts, completions: reward(completions)),),
            tokenizer=tokenizer,
        )
        rollout = RolloutConfig(max_prompt_tokens=length, max_new_tokens=new_tokens)
        cluster = Cluster(
            ClusterConfig(micro_rows=count * group, sequences_per_row=1),
            actor=self.model,
            optimizer=OptimizerConfig(learning_rate=LEARNING_RATE),
            total_steps=10_000,
            max_tokens=length + new_tokens,
            max_prompt_tokens=length,
            group_size=group,
            reference="snapshot",
            engine=make_engine(rollout, self.model),
        )
        batch = BatchConfig(full=count, group_size=group)
        return Learner(self.z.algorithm("grpo"), task, cluster, rollout=rollout, batch=batch)


@functools.cache
def _grpo_loss() -> Any:
    """The objective that `assemble` makes of `grpo`, as `Cluster.update` takes it."""
    import zootomy
    from zootomy.learners.objective import Outputs

    objective = zootomy.assemble(zootomy.algorithm("grpo")).objective

    def loss(outputs: Any, batch: Any, coefficients: Any) -> tuple[Any, dict[str, Any]]:
        experience, weights = batch
        given = Outputs(logp=outputs.logp)
        found = objective(given, experience, {"kl": 0.04, **coefficients}, weights)
        return found.total, {}

    return loss


if __name__ == "__main__":
    serve(Worker())
