"""Prompts, verifiers and reward functions: what a policy is asked, and how it is judged."""

from .arithmetic import ArithmeticOptions, make_arithmetic
from .builder import TaskConfig, make_task
from .character import CharacterTokenizer
from .cursor import PromptOrder
from .early import EarlyScores
from .huggingface_tokenizer import HuggingFaceTokenizer
from .jsonl import load_jsonl
from .math_verify import math_verify_reward
from .reasoning_gym import families, make_reasoning_gym
from .rewards import Scores, accuracy, check_rewards, gather_columns, score
from .types import (
    Demonstration,
    Example,
    Prompt,
    RewardFunction,
    Task,
    TaskError,
    Tokenizer,
)
from .user_functions import load_reward_functions, reward_function

__all__ = [
    "ArithmeticOptions",
    "CharacterTokenizer",
    "Demonstration",
    "EarlyScores",
    "Example",
    "HuggingFaceTokenizer",
    "Prompt",
    "PromptOrder",
    "RewardFunction",
    "Scores",
    "Task",
    "TaskConfig",
    "TaskError",
    "Tokenizer",
    "accuracy",
    "check_rewards",
    "families",
    "gather_columns",
    "load_jsonl",
    "load_reward_functions",
    "make_arithmetic",
    "make_reasoning_gym",
    "make_task",
    "math_verify_reward",
    "reward_function",
    "score",
]
