"""What a run is doing: metrics, logs, progress, samples, plots and reports."""

from .log import RunLog, read_log, series
from .metrics import Mean, MetricAccumulator, MonitorError, nonfinite
from .plots import CURVES, Curve, plot_runs
from .report import Summary, compare_runs, summarize
from .samples import Sample, SampleLog, choose, write_markdown
from .screen import Screen
from .spans import Spans
from .sparkline import sparkline
from .trace import Trace

__all__ = [
    "CURVES",
    "Curve",
    "Mean",
    "MetricAccumulator",
    "MonitorError",
    "RunLog",
    "Sample",
    "SampleLog",
    "Screen",
    "Spans",
    "Summary",
    "Trace",
    "choose",
    "compare_runs",
    "nonfinite",
    "plot_runs",
    "read_log",
    "series",
    "sparkline",
    "summarize",
    "write_markdown",
]
