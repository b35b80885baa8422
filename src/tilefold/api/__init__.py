"""The public operations, each under its name: validate, make a request, dispatch."""

from tilefold.api import operations, registered

__all__ = ["operations", "registered"]  # what torch knows as soon as any of it is imported
