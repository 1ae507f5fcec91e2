"""The commands of the command line, a subject a file; `cli.py` puts them together."""

from .asking import diff, find, list_names, show
from .benchmarks import bench, bench_from
from .runs import evaluate_from, evaluate_run, show_cluster, show_cluster_from
from .training import train, train_from
from .words import call_command

__all__ = [
    "bench",
    "bench_from",
    "call_command",
    "diff",
    "evaluate_from",
    "evaluate_run",
    "find",
    "list_names",
    "show",
    "show_cluster",
    "show_cluster_from",
    "train",
    "train_from",
]
