"""What a validated call asks for: its computation, dims and results. One class an operation; `dispatch` runs any."""

from tilefold.requests.base import Request, Result
from tilefold.requests.product import Product
from tilefold.requests.rearrangement import Rearrangement
from tilefold.requests.reduce_map import RowMap
from tilefold.requests.reduction import Reduction
from tilefold.requests.scan import Scan
from tilefold.requests.segments import Segments
from tilefold.requests.selection import Selected

__all__ = [
    "Product",
    "Rearrangement",
    "Reduction",
    "Request",
    "Result",
    "RowMap",
    "Scan",
    "Segments",
    "Selected",
]
