"""The public operations, each under its name: validate, make a request, dispatch."""

from pathlib import Path

from tilefold.api import operations, other_operations, registered
from tilefold.runtime.caching import keep_graphs_by, source_tag

__all__ = [
    "operations",
    "other_operations",
    "registered",
]  # what torch knows as soon as any of it is imported

keep_graphs_by(source_tag(Path(__file__).parents[1]))
