"""Readable CUDA C++ from PTX, by small passes over one graph of values and one frozen tree of effects.

The order in which a kernel passes them: `blocks` (basic blocks, liveness, loops), `pure` and `inline` (an instruction as
a value, or as inline PTX), `effects` and `lift` (registers become values of `values`, jumps become the ifs and loops of
`tree`), `counted` (loops that are a `for`), `linear` (sums, exact in their width), `scopes` (where values are used), `kinds`
(C++ types), `indices` and `expressions` (values, or several of one shape as a function of i), `memory`, `combines` (how lanes
fold states of several values), `folds`, `reductions`, `variables` and `statements` (the tree, in its order), `kernel` (what
stands around it). `sheet` holds what is written so far and takes back what no loop says. A region that loops over values
cannot say is said one value after another; what a pass cannot say at all is an `UnreadableError`: the plain form says it.
"""

from tilefold.xray.cuda.readable.blocks import UnreadableError
from tilefold.xray.cuda.readable.kernel import Readable, by_regions, readable

__all__ = ["Readable", "UnreadableError", "by_regions", "readable"]
