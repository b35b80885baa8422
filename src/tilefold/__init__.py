"""Fold any tensor with any monoid at the speed of memory, and see what the compiler made of it."""

from importlib import import_module as _import_module
from types import ModuleType as _ModuleType

from tilefold import math as math
from tilefold import monoids as monoids
from tilefold import nn as nn
from tilefold.algebra.monoid import Monoid as Monoid
from tilefold.contract.matmul import matmul as matmul
from tilefold.explain import explain_plan as explain_plan
from tilefold.fold import backend as backend
from tilefold.fold import last_plan as last_plan
from tilefold.fold import reduce as reduce
from tilefold.functional import all as all
from tilefold.functional import amax as amax
from tilefold.functional import amin as amin
from tilefold.functional import aminmax as aminmax
from tilefold.functional import any as any
from tilefold.functional import argmax as argmax
from tilefold.functional import argmin as argmin
from tilefold.functional import bitwise_and as bitwise_and
from tilefold.functional import bitwise_or as bitwise_or
from tilefold.functional import bitwise_xor as bitwise_xor
from tilefold.functional import count_nonzero as count_nonzero
from tilefold.functional import logsumexp as logsumexp
from tilefold.functional import max as max
from tilefold.functional import mean as mean
from tilefold.functional import min as min
from tilefold.functional import norm as norm
from tilefold.functional import prod as prod
from tilefold.functional import std as std
from tilefold.functional import std_mean as std_mean
from tilefold.functional import sum as sum
from tilefold.functional import var as var
from tilefold.functional import var_mean as var_mean
from tilefold.functional import vector_norm as vector_norm

_LATER = ("inductor", "xray")  # with much to import, which most programs do without


def __getattr__(name: str) -> _ModuleType:
    if name in _LATER:
        return _import_module(f"tilefold.{name}")
    raise AttributeError(f"module 'tilefold' has no attribute {name!r}")
