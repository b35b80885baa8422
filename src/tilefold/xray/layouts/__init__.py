"""Triton's layouts as elements, threads and warps along each dim."""

from tilefold.xray.layouts.holding import Holding, holding

__all__ = ["Holding", "holding"]
