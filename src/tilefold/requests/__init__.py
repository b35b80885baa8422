"""What a validated call asks for: its computation, dims and results. One class an operation; `dispatch` runs any."""

from tilefold.requests.base import Request, Result
from tilefold.requests.product import Product
from tilefold.requests.reduction import Reduction
from tilefold.requests.segments import Segments

__all__ = ["Product", "Reduction", "Request", "Result", "Segments"]
