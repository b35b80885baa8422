"""The monoids everyone needs, each a few lines of algebra. Their laws are checked by the tests, not at import."""

from __future__ import annotations

from tilefold import math
from tilefold.algebra.monoid import Monoid

__all__ = ["MAX", "SUM"]

SUM = Monoid(lambda a, b: a + b, 0, commutative=True, check=False, name="sum")
MAX = Monoid(math.maximum, -float("inf"), dtypes="input", commutative=True, check=False, name="max")
