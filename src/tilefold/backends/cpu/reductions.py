"""Reductions of a block on torch operations, with bits that depend neither on threads nor on how many results there are."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

from tilefold.algebra.whole_vectors import SERIAL
from tilefold.runtime.caching import kept_outside_modes

Tensor = torch.Tensor
Function = Callable[..., Any]


def by_results(function: Function, value: Tensor, axes: tuple[int, ...]) -> Tensor:
    """A reduction whose every result's bits depend neither on the number of threads nor on how many results there are.

    Axes with another between them would be one long axis where that one has length 1, so they follow one after another;
    and the first of them leave so few elements that they can be laid out as rows, which torch adds up one by one.
    """
    first, *others = groups(axes)
    value = _on_one_thread(function, value, first)
    for some in others:
        value = _in_rows(function, value, some)
    return value


@kept_outside_modes(256)
def groups(axes: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Axes in groups of neighbours, the last group first."""
    groups = itertools.groupby(enumerate(sorted(axes, reverse=True)), sum)
    return [tuple(axis for _, axis in group) for _, group in groups]


def _in_rows(function: Function, value: Tensor, axes: tuple[int, ...]) -> Tensor:
    order = [a for a in range(value.ndim) if a not in axes] + sorted(axes)
    rows = value.permute(order).contiguous()
    folded = _on_one_thread(function, rows, tuple(range(-len(axes), 0)))
    return folded.permute([order.index(a) for a in range(value.ndim)])


def _on_one_thread(function: Function, value: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Torch shares out results among threads, but a single one's elements; so a single one is asked for twice."""
    if value.numel() < SERIAL or torch.get_num_threads() == 1 or not _is_single(value, axes):
        alone: Tensor = function(value, axes)
        return alone
    axes = tuple(a % value.ndim for a in axes)
    twice: Tensor = function(value.expand(2, *value.shape), tuple(a + 1 for a in axes))
    return twice[0]


def _is_single(value: Tensor, axes: tuple[int, ...]) -> bool:
    """Whether one result is all there is."""
    inner = {a % value.ndim for a in axes}
    return all(n == 1 for d, n in enumerate(value.shape) if d not in inner)
