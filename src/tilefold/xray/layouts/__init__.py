"""Triton's layouts as elements, threads and warps along each dim."""

from tilefold.xray.layouts.holding import Bases, Holding, bases, holding

__all__ = ["Bases", "Holding", "bases", "holding"]
