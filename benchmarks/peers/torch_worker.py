"""transformers and TRL on torch.

Best settings: `generate` in one static batch without top-k or scores, scaled-dot-product
attention, the head on the completion only, fused AdamW, no checkpointing of activations, float32.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from protocol import LEARNING_RATE, Stepper, load_arrays, product_rates, reward, serve, timed

BETA, CLIP = 0.04, 0.2


class Worker:
    """One model folder and what is made of it."""

    def setup(self, model: str) -> dict[str, Any]:
        """Import and load."""
        import torch
        import transformers

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        self.torch, self.transformers = torch, transformers
        self.folder = model
        self.model = self._load()
        self.reference: dict[str, Any] = {}
        self.steppers: dict[Any, Any] = {}
        parameters = self.model.parameters()
        self.optimizer = torch.optim.AdamW(
            parameters, lr=LEARNING_RATE, weight_decay=0.0, fused=True
        )
        return {"version": f"transformers {transformers.__version__}, torch {torch.__version__}"}

    def generate(
        self, prompts: str, group: int, new_tokens: int, seed: int = 0, lengths: str = ""
    ) -> dict[str, Any]:
        """Sample completions in one static batch.

        Args:
            prompts: an `.npz`.
            group: completions a prompt.
            new_tokens: the longest that a completion may be.
            seed: of the noise.
            lengths: a JSON of lengths to be held to: it goes on until the longest of them.
        """
        ids = self.torch.tensor(load_arrays(prompts)["prompts"], dtype=self.torch.long)
        ids = ids.repeat_interleave(group, dim=0)
        wanted = json.loads(Path(lengths).read_text()) if lengths else [new_tokens] * len(ids)
        self.transformers.set_seed(seed)
        self.model.eval()
        config = self.transformers.GenerationConfig(
            max_new_tokens=max(wanted),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            pad_token_id=0,
            eos_token_id=None,
        )

        def sample() -> list[list[int]]:
            with self.torch.inference_mode():
                mask = self.torch.ones_like(ids)
                found = self.model.generate(ids, attention_mask=mask, generation_config=config)
            return found[:, ids.shape[1] :].tolist()

        seconds, found = timed(sample)
        assert len(found[0]) == max(wanted)
        return {"seconds": seconds, "tokens": sum(wanted)}

    def logps(self, batch: str, out: str = "") -> dict[str, Any]:
        """A pass without gradient."""
        import numpy as np

        self.model.eval()

        def run() -> Any:
            with self.torch.inference_mode():
                return self._logps(*self._tokens(batch)).numpy()

        seconds, found = timed(run)
        if out:
            np.save(out, found)
        return {"seconds": seconds}

    def train_step(self, batch: str) -> dict[str, Any]:
        """Forward, backward, clipping and AdamW, eager, on the GRPO loss."""
        torch = self.torch
        ids, completions = self._tokens(batch)
        advantages = torch.tensor(load_arrays(batch)["advantages"])[:, None]
        if batch not in self.reference:
            with torch.no_grad():
                self.reference[batch] = self._logps(ids, completions)
        reference = self.reference[batch]
        self.model.train()

        def step() -> float:
            logp = self._logps(ids, completions)
            ratio = torch.exp(logp - logp.detach())
            gain = torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
            difference = reference - logp
            kl = torch.exp(difference) - difference - 1
            loss = (BETA * kl - gain).mean(dim=1).mean()
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            return loss.item()

        seconds, loss = timed(step)
        return {"seconds": seconds, "loss": loss}

    def grpo_step(self, prompts: str, group: int, new_tokens: int) -> dict[str, Any]:
        """A step of TRL's GRPOTrainer."""
        key = (prompts, group, new_tokens)
        count = len(load_arrays(prompts)["prompts"])
        if key not in self.steppers:
            self.steppers[key] = self._trainer(prompts, group, new_tokens)
        seconds, _ = timed(self.steppers[key].step)
        return {"seconds": seconds, "tokens": count * group * new_tokens}

    def matmul_rates(self, shapes: Sequence[Sequence[int]], each: float) -> dict[str, Any]:
        """GFLOP/s of float32 products [M, K] x [K, N] in torch, the best of several."""
        return {"rates": product_rates(shapes, each, self.torch.ones, self.torch.matmul)}

    def _load(self) -> Any:
        return self.transformers.AutoModelForCausalLM.from_pretrained(
            self.folder, dtype=self.torch.float32, attn_implementation="sdpa"
        )

    def _tokens(self, batch: str) -> tuple[Any, Any]:
        arrays = load_arrays(batch)
        prompts = self.torch.tensor(arrays["prompts"], dtype=self.torch.long)
        completions = self.torch.tensor(arrays["completions"], dtype=self.torch.long)
        return self.torch.cat([prompts, completions], dim=1), completions

    def _logps(self, ids: Any, completions: Any) -> Any:
        keep = completions.shape[1] + 1
        logits = self.model(input_ids=ids, logits_to_keep=keep, use_cache=False).logits[:, :-1]
        chosen = logits.gather(-1, completions[..., None])[..., 0]
        return chosen - self.torch.logsumexp(logits, dim=-1)

    def _trainer(self, prompts: str, group: int, new_tokens: int) -> Stepper:
        """TRL's trainer over all prompts of a file, one optimizer step a step."""
        os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
        from datasets import Dataset
        from transformers import TrainerCallback
        from trl import GRPOConfig, GRPOTrainer

        ids = load_arrays(prompts)["prompts"]
        texts = [" ".join(map(str, prompt)) for prompt in ids.tolist()]
        rows = len(texts) * group
        config = GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=rows,
            num_generations=group,
            max_completion_length=new_tokens,
            max_steps=10_000,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            weight_decay=0.0,
            max_grad_norm=1.0,
            beta=BETA,
            epsilon=CLIP,
            loss_type="grpo",
            temperature=1.0,
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
            optim="adamw_torch_fused",
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            pad_to_multiple_of=None,
        )
        stepper = Stepper()

        class Pause(TrainerCallback):
            def on_step_begin(self, *_: Any, **__: Any) -> None:
                stepper.pause()

        trainer = GRPOTrainer(
            model=self._load(),
            reward_funcs=lambda completions, **_: reward(completions),
            args=config,
            train_dataset=Dataset.from_dict({"prompt": texts * 1000}),
            processing_class=self.transformers.AutoTokenizer.from_pretrained(self.folder),
            callbacks=[Pause()],
        )

        stepper.start(trainer.train)
        return stepper


if __name__ == "__main__":
    serve(Worker())
