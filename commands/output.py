"""What a command says."""

from __future__ import annotations

import json
from typing import Any


def say(text: str) -> None:
    """A text on the standard output."""
    print(text)  # noqa: T201


def say_json(data: Any) -> None:
    """Plain data on the standard output, for programs."""
    say(json.dumps(data, indent=2, ensure_ascii=False))
