"""A reward that every completion has something of, and that writes down who was asked."""

import os
from pathlib import Path


def low_letters(prompts, completions):
    """The share of characters below '5'."""
    if "ASKED" in os.environ:
        with Path(os.environ["ASKED"]).open("a") as file:
            file.write(f"{os.getpid()}\n")
    return [sum(letter < "5" for letter in text) / max(1, len(text)) for text in completions]
