"""Requests of validated calls: computation, dims and results. One class an operation; `dispatch` runs any."""

from tilefold.api.requests.base import Request, Result
from tilefold.api.requests.chosen import Chosen
from tilefold.api.requests.many import Many
from tilefold.api.requests.product import Product
from tilefold.api.requests.rearrangement import Rearrangement
from tilefold.api.requests.reduce_map import RowMap
from tilefold.api.requests.reduction import Reduction
from tilefold.api.requests.scan import Scan
from tilefold.api.requests.segments import Segments
from tilefold.api.requests.selection import Selected

__all__ = [
    "Chosen",
    "Many",
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
