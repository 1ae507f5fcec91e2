"""The benchmarks' modules stand beside the package and import each other by name."""

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
for folder in (BENCHMARKS, BENCHMARKS / "peers"):
    sys.path.insert(0, str(folder))
