"""The command line: one entry, which hands each command on and turns its end into an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

import tyro

from . import commands
from .learners.arguments import take_named
from .learners.stopping import RunStopped
from .registry import ZootomyError, load_plugin, unknown_name

USER_ERROR = 2
# As `EX_TEMPFAIL` in sysexits.h: try again, which is what a scheduler does with `--resume`.
SAVED = 75
INTERRUPTED = 130

# Each by its name; tyro writes the help, and the words are read by name, as in a YAML file.
COMMANDS: dict[str, Callable[..., None]] = {
    "list": commands.list_names,
    "show": commands.show,
    "diff": commands.diff,
    "find": commands.find,
    "train": commands.train,
    "show-cluster": commands.show_cluster,
    "eval": commands.evaluate_run,
    "bench": commands.bench,
}
# What reads the words of those that take the settings of a run.
READERS: dict[str, Callable[[list[str]], None]] = {
    "train": commands.train_from,
    "show-cluster": commands.show_cluster_from,
    "eval": commands.evaluate_from,
}


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
        if not given or given[0] in ("-h", "--help"):
            _print_help()
        name, *words = given
        if name not in COMMANDS:
            raise unknown_name("command", name, COMMANDS)
        if name == "bench":
            return commands.bench_from(words)
        if name in READERS:
            READERS[name](words)
        else:
            commands.call_command(COMMANDS[name], name, words)
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


def _print_help() -> None:
    """Print what there is, and end the process."""
    app = tyro.extras.SubcommandApp()
    for name, command in COMMANDS.items():
        app.command(name=name)(command)
    app.cli(prog="zootomy", args=["--help"])


def _load_plugins(arguments: list[str]) -> list[str]:
    """Run every `--plugin FILE`, so that its blocks have names; the rest is returned."""
    rest, paths = take_named(arguments, "plugin")
    for path in paths:
        load_plugin(path)
    return rest


if __name__ == "__main__":
    sys.exit(main())
