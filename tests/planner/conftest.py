"""The planner's benchmarks are scripts: tests of what they share with the model find them here."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "benchmarks" / "planner")]
