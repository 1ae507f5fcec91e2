"""google-tunix, by its own sampler, cluster and learner.

Best settings: one mini-batch and one micro-batch of the whole batch, no rematerialisation, actor
and rollout on one mesh (weights are shared, not copied), a cache as long as prompt and completion,
log-probabilities from the sampler only where they are asked for. Like the others: AdamW, gradients
clipped at norm 1, the k3 estimator in the loss at 0.04.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from protocol import LEARNING_RATE, Stepper, load_arrays, reward, serve, timed


class NumberTokenizer:
    """Token i is the word `i`; padding and end are no token that can be sampled."""

    def __init__(self, vocab_size: int):
        self._vocab_size = vocab_size

    def encode(self, text: str, **_: Any) -> list[int]:
        """The numbers in a text."""
        return [int(word) for word in text.split()]

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        """Numbers with spaces between."""
        return " ".join(map(str, ids))

    def bos_id(self) -> int:
        """None is put before a prompt."""
        return 0

    def pad_id(self) -> int:
        """Outside the vocabulary."""
        return self._vocab_size

    def eos_id(self) -> int:
        """Outside the vocabulary."""
        return self._vocab_size + 1


class Worker:
    """One model folder and what is made of it."""

    def setup(self, model: str) -> dict[str, Any]:
        """Import and load."""
        import importlib.metadata

        import jax
        import jax.numpy as jnp
        import numpy as np
        from tunix.models.qwen3 import model as qwen3
        from tunix.models.qwen3 import params

        self.jax, self.jnp, self.np = jax, jnp, np
        fields = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
        config = qwen3.ModelConfig(
            num_layers=fields["num_hidden_layers"],
            vocab_size=fields["vocab_size"],
            embed_dim=fields["hidden_size"],
            hidden_dim=fields["intermediate_size"],
            num_heads=fields["num_attention_heads"],
            num_kv_heads=fields["num_key_value_heads"],
            head_dim=fields["head_dim"],
            rope_theta=1_000_000,
            norm_eps=fields["rms_norm_eps"],
            use_tied_embedding=fields["tie_word_embeddings"],
            dtype=jnp.float32,
            param_dtype=jnp.float32,
        )
        self.mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
        self.load = lambda: params.create_model_from_safe_tensors(
            model, config, self.mesh, dtype=jnp.float32
        )
        self.config = config
        self.tokenizer = NumberTokenizer(config.vocab_size)
        self.samplers: dict[Any, Any] = {}
        self.learners: dict[Any, Any] = {}
        self.model = self.load()
        version = importlib.metadata.version("google-tunix")
        return {"version": f"google-tunix {version}, jax {jax.__version__}"}

    def generate(
        self,
        prompts: str,
        group: int,
        new_tokens: int,
        seed: int = 0,
        cache: int | None = None,
        lengths: str = "",
        logps: bool = False,
    ) -> dict[str, Any]:
        """Sample completions in one static batch.

        Args:
            prompts: an `.npz`.
            group: completions a prompt.
            new_tokens: the longest that a completion may be.
            seed: of the noise.
            cache: its slots; None: prompt and completion.
            lengths: a JSON of lengths to be held to: the loop ends after the longest of them, as
                it would if every row stopped where they say.
            logps: also the log-probability of every sampled token.
        """
        ids = load_arrays(prompts)["prompts"]
        texts = [self.tokenizer.decode(prompt) for prompt in ids for _ in range(group)]
        size = cache or ids.shape[1] + new_tokens
        if size not in self.samplers:
            self.samplers[size] = self._sampler(size)
        sampler = self.samplers[size]
        wanted = json.loads(Path(lengths).read_text()) if lengths else [new_tokens] * len(texts)
        sampler.last_step = ids.shape[1] + max(wanted)

        def sample() -> Any:
            return sampler(
                texts,
                max_generation_steps=new_tokens,
                max_prompt_length=ids.shape[1],
                temperature=1.0,
                top_p=1.0,
                seed=seed,
                return_logprobs=logps,
            )

        seconds, _ = timed(sample)
        return {"seconds": seconds, "tokens": sum(wanted)}

    def logps(self, batch: str, out: str = "") -> dict[str, Any]:
        """The reference pass of its cluster."""
        cluster, arrays = self._learner(batch)[0].rl_cluster, load_arrays(batch)
        seconds, found = timed(
            lambda: self.np.asarray(
                cluster.get_ref_per_token_logps(
                    arrays["prompts"],
                    arrays["completions"],
                    self.tokenizer.pad_id(),
                    self.tokenizer.eos_id(),
                )
            )
        )
        if out:
            self.np.save(out, found)
        return {"seconds": seconds}

    def train_step(self, batch: str) -> dict[str, Any]:
        """A step of its actor trainer."""
        from tunix.rl.grpo.grpo_learner import TrainExample

        cluster, arrays = self._learner(batch)[0].rl_cluster, load_arrays(batch)
        prompts, completions = arrays["prompts"], arrays["completions"]
        pad, end = self.tokenizer.pad_id(), self.tokenizer.eos_id()
        example = TrainExample(
            prompt_ids=self.jnp.asarray(prompts),
            prompt_mask=self.jnp.ones(prompts.shape, bool),
            completion_ids=self.jnp.asarray(completions),
            completion_mask=self.jnp.ones(completions.shape, bool),
            ref_per_token_logps=cluster.get_ref_per_token_logps(prompts, completions, pad, end),
            advantages=self.jnp.asarray(arrays["advantages"]),
            old_per_token_logps=None,
        )
        self.jax.block_until_ready(example.ref_per_token_logps)

        def step() -> None:
            cluster.update_actor([example], None)
            self.jax.block_until_ready(self._weights(cluster))

        return {"seconds": timed(step)[0]}

    def update_weights(self) -> dict[str, Any]:
        """New weights into the sampler of a cluster."""
        from flax import nnx

        learner = next(iter(self.learners.values()))[0]
        fresh = self.jax.tree.map(lambda x: x + 0, self._weights(learner.rl_cluster))
        self.jax.block_until_ready(fresh)
        rollout = learner.rl_cluster.rollout
        seconds, _ = timed(lambda: rollout.update_params(fresh, (nnx.Param,)))
        return {"seconds": seconds}

    def grpo_step(self, prompts: str, group: int, new_tokens: int) -> dict[str, Any]:
        """A step of its GRPO learner."""
        learner, stepper = self._learner(prompts, group, new_tokens)
        count = len(load_arrays(prompts)["prompts"])

        def step() -> None:
            stepper.step()
            self.jax.block_until_ready(self._weights(learner.rl_cluster))

        return {"seconds": timed(step)[0], "tokens": count * group * new_tokens}

    def _weights(self, cluster: Any) -> Any:
        from flax import nnx

        return nnx.state(cluster.actor_trainer.model, nnx.Param)

    def _sampler(self, cache: int) -> Any:
        """Its sampler, whose loop can be told to end earlier; the program is the same."""
        from tunix.generate import sampler as tunix_sampler

        class Sampler(tunix_sampler.Sampler):
            last_step = 0

            def init_sample_state(self, *arguments: Any, **named: Any) -> Any:
                state = super().init_sample_state(*arguments, **named)
                return dataclasses.replace(state, total_sampling_steps=self.last_step)

        config = tunix_sampler.CacheConfig(
            cache_size=cache,
            num_layers=self.config.num_layers,
            num_kv_heads=self.config.num_kv_heads,
            head_dim=self.config.head_dim,
        )
        return Sampler(self.model, self.tokenizer, config)

    def _learner(self, path: str, group: int = 4, new_tokens: int = 64) -> Any:
        """A GRPO learner over all prompts of a file, and what lets it take a step."""
        import optax
        from tunix.rl import rl_cluster as clusters
        from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
        from tunix.rl.rollout.base_rollout import RolloutConfig

        if path in self.learners:
            return self.learners[path]
        ids = load_arrays(path)["prompts"]
        count, length = ids.shape
        roles = (clusters.Role.ACTOR, clusters.Role.REFERENCE, clusters.Role.ROLLOUT)
        config = clusters.ClusterConfig(
            role_to_mesh=dict.fromkeys(roles, self.mesh),
            training_config=clusters.RLTrainingConfig(
                actor_optimizer=optax.chain(
                    optax.clip_by_global_norm(1.0), optax.adamw(LEARNING_RATE, weight_decay=0.0)
                ),
                eval_every_n_steps=10**9,
                max_steps=10**6,
                mini_batch_size=count,
                train_micro_batch_size=count,
            ),
            rollout_config=RolloutConfig(
                max_tokens_to_generate=new_tokens,
                max_prompt_length=length,
                kv_cache_size=length + new_tokens,
                temperature=1.0,
                top_p=1.0,
            ),
        )
        cluster = clusters.RLCluster(
            actor=self.load(),
            reference=self.load(),
            tokenizer=self.tokenizer,
            cluster_config=config,
        )
        learner = GRPOLearner(
            cluster,
            GRPOConfig(num_generations=group, beta=0.04, kl_loss_mode="low_var_kl"),
            lambda prompts, completions, **_: reward(completions),
        )
        texts = self.np.array([self.tokenizer.decode(prompt) for prompt in ids])
        stepper = Stepper()
        stepper.start(lambda: learner.train(stepper.batches({"prompts": texts})))
        self.learners[path] = learner, stepper
        return self.learners[path]


if __name__ == "__main__":
    serve(Worker())
