"""The public operations, each under its name: validate, make a request, dispatch."""

from tilefold.api import operations, other_operations, registered

__all__ = [
    "operations",
    "other_operations",
    "registered",
]  # what torch knows as soon as any of it is imported
