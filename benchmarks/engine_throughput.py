"""Tokens a second of each rollout engine, at several numbers of completions.

    python benchmarks/engine_throughput.py --engines vanilla vllm

A model from scratch (the preset `medium` with 512 tokens: 3.3 million parameters), prompts of 32
tokens in groups of 4, completions of 64 tokens, float32; the median of some rounds after one that
compiles.
"""

import argparse
import statistics
import time

from zootomy.models import make_model
from zootomy.rollout import Request, RolloutConfig, make_engine

PROMPT, COMPLETION, GROUP, VOCABULARY = 32, 64, 4, 512


def requests(completions):
    """Different prompts, each for a group."""
    return [
        Request(tuple((7 * i + 3 * j) % VOCABULARY for j in range(PROMPT)), n=GROUP)
        for i in range(completions // GROUP)
    ]


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", nargs="*", default=["vanilla", "vllm"])
    parser.add_argument("--sizes", type=int, nargs="*", default=[8, 32, 128])
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    model = make_model("medium", vocab_size=VOCABULARY)
    print("| engine | completions | tokens/s with a seed | without |")
    print("|---|---|---|---|")
    for name in given.engines:
        config = RolloutConfig(
            engine=name,
            max_prompt_tokens=PROMPT,
            max_new_tokens=COMPLETION,
            max_slots=max(given.sizes),
        )
        engine = make_engine(config, model)
        for size in given.sizes:
            speeds = []
            for seed in (1, None):
                times = []
                for _ in range(given.rounds + 1):
                    began = time.perf_counter()
                    engine.generate(requests(size), config.sampling(), seed)
                    times.append(time.perf_counter() - began)
                speeds.append(size * COMPLETION / statistics.median(times[1:]))
            print(f"| {name} | {size} | {speeds[0]:,.0f} | {speeds[1]:,.0f} |", flush=True)
        engine.close()


if __name__ == "__main__":
    main()
