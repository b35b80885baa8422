"""Fold any tensor with any monoid at the speed of memory, and see what the compiler made of it."""

from tilefold import math as math
from tilefold import monoids as monoids
from tilefold.algebra.monoid import Monoid as Monoid
from tilefold.fold import backend as backend
from tilefold.fold import explain_plan as explain_plan
from tilefold.fold import last_plan as last_plan
from tilefold.fold import reduce as reduce
