"""The errors a user can cause, each a sentence: what was given, what was expected, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ZootomyError(ValueError):
    """Wrong input; the command line prints it without a traceback."""


class UnknownNameError(ZootomyError):
    """A name that nothing is registered under."""


class DuplicateNameError(ZootomyError):
    """A name that is registered already."""


class ContractError(ZootomyError):
    """A block whose signature does not fit its slot."""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> UnknownNameError:
    """The error for a wrong name: what was asked for, the closest names, all names.

    Args:
        kind: what the name should have named, e.g. `"policy_loss block"`.
        name: what was given.
        known: every right name.

    Returns:
        The error, to be raised by the caller.
    """
    known = sorted(known)
    close = closest(str(name), known)
    hint = f" Did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
    listing = ", ".join(known) if known else "none"
    return UnknownNameError(f"Unknown {kind} {name!r}.{hint} Known: {listing}.")


def closest(name: str, known: Iterable[str]) -> list[str]:
    """The closest of some names, and those that are about as close; the best first."""
    close = difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.6)
    likeness = [difflib.SequenceMatcher(None, candidate, name).ratio() for candidate in close]
    return [one for one, ratio in zip(close, likeness, strict=True) if ratio > likeness[0] - 0.1]
