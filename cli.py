"""The command line: one entry, which hands each command on and turns its end into an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import tyro

from . import commands
from .learners.arguments import refuse_twice, take_named
from .learners.stopping import RunStopped
from .registry import ZootomyError, load_plugin

USER_ERROR = 2
# As `EX_TEMPFAIL` in sysexits.h: try again, which is what a scheduler does with `--resume`.
SAVED = 75
INTERRUPTED = 130

app = tyro.extras.SubcommandApp()
app.command(name="list")(commands.list_names)
app.command(commands.show)
app.command(commands.diff)
app.command(commands.find)
app.command(commands.train)
app.command(name="show-cluster")(commands.show_cluster)
app.command(name="eval")(commands.evaluate_run)
app.command(commands.bench)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: the words after `zootomy`; None takes them from the process.

    Returns:
        The exit code: 0; 2 for an error of the user's; 75 for a run that was asked to stop and is
        saved; 130 for one that was interrupted.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        given = _load_plugins(given)
        if given[:1] == ["train"]:
            commands.train_from(given[1:])
        elif given[:1] == ["show-cluster"]:
            commands.show_cluster_from(given[1:])
        elif given[:1] == ["bench"]:
            return commands.bench_from(given[1:])
        else:
            refuse_twice(given)
            app.cli(prog="zootomy", args=given)
    except ZootomyError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return USER_ERROR
    except RunStopped as stopped:
        print(stopped, file=sys.stderr)  # noqa: T201
        return SAVED
    except BrokenPipeError:
        # Whoever read the output has seen enough, as in `zootomy show grpo | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201
        return INTERRUPTED
    return 0


def _load_plugins(arguments: list[str]) -> list[str]:
    """Run every `--plugin FILE`, so that its blocks have names; the rest is returned."""
    rest, paths = take_named(arguments, "plugin")
    for path in paths:
        load_plugin(path)
    return rest


if __name__ == "__main__":
    sys.exit(main())
