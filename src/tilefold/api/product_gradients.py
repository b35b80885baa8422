"""The backward of `matmul`: two products, of the accumulator's cotangent, which the epilogue's and the row's graphs give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tilefold.algebra.derivatives.linear import as_float
from tilefold.algebra.derivatives.pullback import pullback
from tilefold.algebra.expression import trace
from tilefold.algebra.monoid import Monoid
from tilefold.algebra.typing import TypedGraph, is_float
from tilefold.api import products
from tilefold.api import reduce as folds
from tilefold.api import reduce_map as maps
from tilefold.api.differentiated import Call
from tilefold.api.gradients import Fold, Like, as_inputs, cells, converted, fold_of, function_of, summed
from tilefold.api.map_gradients import Map
from tilefold.planner.products.epilogue import Epilogue, accumulator_dtype, make_epilogue
from tilefold.planner.products.functions import Traced
from tilefold.planner.products.operands import as_matrices
from tilefold.runtime.caching import kept_outside_modes
from tilefold.runtime.modes import as_given


@dataclass(frozen=True)
class Multiplied(Call):
    """A product as its backward needs it: of a, b and extra tensors, of which the bias is the first.

    The accumulator is not kept: it is multiplied again where a derivative reads it.
    """

    has_bias: bool
    epilogue: Traced | None
    row: tuple[Monoid, Traced | None] | None
    out_dtype: torch.dtype | None
    precision: str | None
    guarantee: str
    call: str = "matmul"

    def _ending(self, tensors: Sequence[Tensor]) -> Epilogue:
        dtypes = [t.dtype for t in tensors[2:]]
        bias, extras = (dtypes[0], dtypes[1:]) if self.has_bias else (None, dtypes)
        return make_epilogue(self.epilogue, bias, tuple(extras), tensors[0].dtype, self.out_dtype, self.row)

    def check(self, tensors: Sequence[Tensor]) -> None:
        """Refuse a row's fold that has no derivative.

        Raises:
            GradientError: as folds and maps.
        """
        if self.row is not None:
            value = torch.empty((2, 2), dtype=self._ending(tensors).value, device="meta")
            self._fold(value).check([value])

    def _fold(self, value: Tensor) -> Fold:
        assert self.row is not None
        like = (Like(value.shape, value.dtype, value.device),)
        return fold_of(self.row[0], -1, None, self.guarantee, 1, False, like, self.call)

    def moves(self, result: int, tensors: Sequence[Tensor]) -> bool:
        """Whether a result changes with an element."""
        if not result:
            return True
        value = torch.empty((2, 2), dtype=self._ending(tensors).value, device="meta")
        return is_float(value.dtype) and self._fold(value).moves(result - 1, [value])

    def backward(self, tensors: Sequence[Tensor], grads: Sequence[Tensor], wrt: Sequence[int]) -> list[Any]:
        """The operands' and extra tensors' cotangents."""
        a, b, *extras = tensors
        with as_given(a.device):
            ending = self._ending(tensors)
            beside = [t.expand(grads[0].shape) for t in extras]
            places = tuple(i - 1 for i in wrt if i > 1)
            of_sum = 0 in wrt or 1 in wrt
            function, reads = _pulled(ending.typed, places, of_sum)
            of_value = accumulated = grads[0]
            if reads or self.row is not None:
                dtype = accumulator_dtype(a.dtype)
                accumulated = products.multiply(
                    a, b, None, None, (), None, dtype, self.precision, self.guarantee, None
                )
            if self.row is not None:
                of_value = self._of_row(ending, accumulated, beside, grads)
            made = cells(function, [accumulated if reads else of_value, *beside, of_value])
            found: dict[int, Tensor] = dict(
                zip([*([0] if of_sum else []), *(p + 1 for p in places)], made, strict=True)
            )
            if of_sum:
                found |= self._of_operands(a, b, found.pop(0), wrt)
            return as_inputs([found[i] for i in wrt], tensors, wrt)

    def _of_row(
        self, ending: Epilogue, accumulated: Tensor, beside: Sequence[Tensor], grads: Sequence[Tensor]
    ) -> Tensor:
        """The cotangent of values that rows were folded of."""
        assert self.row is not None
        (monoid, apply), found = self.row, grads[0]
        (value,) = cells(function_of(ending.typed.graph), [accumulated, *beside])
        if apply is not None:
            shapes, dtypes = (value.shape,), (value.dtype,)
            differentiated = Map(monoid, apply, -1, None, self.guarantee, 1, shapes, dtypes, call=self.call)
            own, function, _ = differentiated.saving()
            made = maps.map_tensors([value], own, function, -1, guarantee=self.guarantee, call=self.call)
            saved = differentiated.saved([value], made, [0])
            (found,) = differentiated.backward(saved, [grads[0], *[None] * (len(made) - 1)], [0])
        fold = self._fold(value)
        if any(fold.moves(i, [value]) for i in range(len(grads) - 1)):
            folded = folds.fold_tensors([value], monoid, -1, False, guarantee=self.guarantee, call=self.call)
            (more,) = fold.backward(fold.saved([value], folded, [0]), grads[1:], [0])
            found = found + more
        return found

    def _of_operands(self, a: Tensor, b: Tensor, g: Tensor, wrt: Sequence[int]) -> dict[int, Tensor]:
        """The cotangents of a and b, of the accumulator's: g @ b^T and a^T @ g."""
        left, right = as_matrices(a, b)
        g = g.unsqueeze(-1) if b.ndim == 1 else g
        g = g.unsqueeze(-2) if a.ndim == 1 else g
        dtype = torch.float32 if a.element_size() == 1 else a.dtype  # float8 has no range for cotangents
        left, right, g = (converted(t, dtype) for t in (left, right, g))
        found = {}
        if 0 in wrt:
            found[0] = summed(self._product(g, right.mT), left.shape).reshape(a.shape)
        if 1 in wrt:
            if right.ndim == 2:
                left, g = left.flatten(0, -2), g.flatten(0, -2)
            found[1] = summed(self._product(left.mT, g), right.shape).reshape(b.shape)
        return found

    def _product(self, a: Tensor, b: Tensor) -> Tensor:
        made: Tensor = products.multiply(
            a, b, None, None, (), None, None, self.precision, self.guarantee, None
        )
        return made


@kept_outside_modes(512)
def _pulled(typed: TypedGraph, places: tuple[int, ...], of_sum: bool) -> tuple[Monoid, bool]:
    """(accumulator, extras, cotangent of the value) -> cotangents of the accumulator (if asked for) and of some extras; and
    whether it reads the accumulator."""
    arity = typed.graph.arity

    def run(*v: Any) -> tuple[Any, ...]:
        found = pullback(typed, v[:arity], [v[arity]])
        wanted = [*([0] if of_sum else []), *places]
        return tuple(as_float(found[i]) for i in wanted)

    graph = trace(run, arity + 1)
    return function_of(graph), any(0 in graph.reads(o) for o in range(len(graph.outputs)))
