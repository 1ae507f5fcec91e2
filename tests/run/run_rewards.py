"""A reward that a fresh model earns in part: runs of a few steps have something to learn."""


def even(prompts, completions):
    """The share of a completion's characters that are even digits; 0 for an empty one."""
    return [sum(c in "02468" for c in text) / max(1, len(text)) for text in completions]
