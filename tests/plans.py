"""Any plan at hand, whether a planner would choose it or not: its kernel calls, its answers, compiled."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tilefold.api import dispatch
from tilefold.api.requests import Product
from tilefold.backends.triton.call import Call
from tilefold.backends.triton.executable import Executable, interpret
from tilefold.backends.triton.lower import calls_of
from tilefold.planner.products.epilogue import Epilogue
from tilefold.planner.products.operands import Contraction, canonical_product
from tilefold.planner.products.plan import Candidate
from tilefold.planner.products.steps import product_plan

Tensor = torch.Tensor


def product_calls(candidate: Candidate, problem: Contraction, ending: Epilogue) -> list[Call]:
    """The kernel calls of a product."""
    return calls_of(product_plan(candidate, problem, ending), problem, ending)


def run_interpreted(
    candidate: Candidate, inputs: Sequence[Tensor], ending: Epilogue, results: Sequence[Tensor]
) -> None:
    """A product of operands and extra tensors (in the result's shape), under Triton's interpreter."""
    a, b, *extras = inputs
    problem = canonical_product(a, b, extras)
    plan = product_plan(candidate, problem, ending)
    interpret(plan, calls_of(plan, problem, ending, interpret=True), ending, inputs, results)


def compiled(
    candidate: Candidate, inputs: Sequence[Tensor], ending: Epilogue, shape: Sequence[int]
) -> Executable:
    """A product of tensors on a GPU, compiled."""
    a, b, *extras = inputs
    problem = canonical_product(a, b, extras)
    request = Product(ending, candidate.precision, candidate.guarantee, tuple(shape))
    return dispatch.compiled(request, inputs, (problem, product_plan(candidate, problem, ending)))
