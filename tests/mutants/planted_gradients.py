"""Faults planted in derivatives, backward and forward, and in what is kept of calls that ask for one."""

from __future__ import annotations

from mutants.mutant import Mutant

TANGENTS = "tests/api/test_tangents.py::test_tangents_are_those_of_the_backward"
GRADIENTS = (
    Mutant(
        "a fold's tangent is a sum of slopes squared",
        "api/tangents.py",
        "*(given[i] for i in inner)]",
        "*(parts[i] for i in inner)]",
        (f"{TANGENTS}[logsumexp]",),
    ),
    Mutant(
        "a map's tangent knows nothing of its row's results",
        "api/tangents.py",
        "*(_wide(t, shape) for t in of_results)",
        "*([None] * len(of_results))",
        (f"{TANGENTS}[softmax]",),
    ),
    Mutant(
        "a product's tangent has the second operand itself",
        "api/tangents.py",
        "[multiplied(a, of_b)]",
        "[multiplied(a, b)]",
        (f"{TANGENTS}[matmul]",),
    ),
    Mutant(
        "the state before a row has no tangent",
        "api/scan_gradients.py",
        "own[f][:, :1] + step[:, :1] * start[h]",
        "own[f][:, :1]",
        (f"{TANGENTS}[affine from a state to a state]",),
    ),
    Mutant(
        "tangents of states are multiplied by the step before",
        "api/scan_gradients.py",
        "_later(step).flip(1)",
        "step.flip(1)",
        (f"{TANGENTS}[affine]",),
    ),
    Mutant(
        "tangents of exclusive prefixes are those of inclusive ones",
        "api/scan_gradients.py",
        "torch.cat([start[f], t[:, :-1]], 1)",
        "t",
        (f"{TANGENTS}[affine, backwards without its own]",),
    ),
    Mutant(
        "a gradient inside of a forward derivative has none itself",
        "api/operations.py",
        "forward_ad._set_fwd_grad_enabled(is_nested or torch._C._is_fwd_grad_enabled())",
        "forward_ad._set_fwd_grad_enabled(torch._C._is_fwd_grad_enabled())",
        ("tests/api/test_tangents.py::test_second_derivatives[logsumexp]",),
    ),
    Mutant(
        "tanh has a slope above 1",
        "algebra/derivatives/rules.py",
        "1.0 - r * r",
        "1.0 + r * r",
        ("tests/algebra/derivatives/test_rules.py::test_derivatives_are_what_differences_say[tanh]",),
    ),
    Mutant(
        "log1p has the slope of log",
        "algebra/derivatives/rules.py",
        "div(g, v[0] + 1.0)",
        "div(g, v[0])",
        ("tests/algebra/derivatives/test_rules.py::test_derivatives_are_what_differences_say[log1p]",),
    ),
    Mutant(
        "the element that folds to the result takes the element's place",
        "api/gradients.py",
        "[x, y.expand(shape), g[0].expand(shape)]",
        "[y.expand(shape), x, g[0].expand(shape)]",
        ("tests/api/test_gradients.py::test_gradients_are_torchs[norm 2]",),
    ),
    Mutant(
        "an element of a row of -inf has a slope",
        "monoids.py",
        "math.where(largest == -INFINITY, INFINITY, largest)",
        "largest",
        ("tests/api/test_gradients.py::test_infinite_rows",),
    ),
    Mutant(
        "torch's derivative of a product of 0 is taken",
        "backends/cpu/native.py",
        "least >= torch.finfo(y.dtype).tiny",
        "least >= 0.0",
        ("tests/api/test_gradients.py::test_not_torchs_own_where_results_have_none",),
    ),
    Mutant(
        "torch's derivative of a row of -inf is taken",
        "backends/cpu/native.py",
        'lambda y: y.amin().item() > -float("inf")',
        "lambda y: True",
        ("tests/api/test_gradients.py::test_not_torchs_own_where_results_have_none",),
    ),
    Mutant(
        "rows' values are read as they lie",
        "backends/cpu/native.py",
        'named["row1"][row].to(kind).contiguous()',
        'named["row1"][row].to(kind)',
        ("tests/api/test_tangents.py::test_jacobians_and_maps[layer_norm]",),
    ),
    Mutant(
        "the slope of a magnitude is the magnitude",
        "backends/cpu/step_builder.py",
        "self._emit(torch.sign, (x,)",
        "self._emit(torch.abs, (x,)",
        ("tests/api/test_gradients.py::test_gradients_are_torchs[norm 1]",),
    ),
    Mutant(
        "a call that is made again reads from the beginning of its tensor's memory",
        "api/replays.py",
        "t.storage_offset() + distance",
        "distance",
        ("tests/api/test_replays.py::test_calls_are_made_again_of_other_tensors",),
    ),
    Mutant(
        "memory seen as another dtype is a view",
        "api/replays.py",
        "value is not None and value.dtype == t.dtype and",
        "value is not None and",
        ("tests/api/test_replays.py::test_other_operations_are_not_known",),
    ),
    Mutant(
        "one backward is kept for cotangents of all layouts",
        "api/differentiated.py",
        "layouts((*saved, *grads))",
        "layouts(saved)",
        ("tests/api/test_replays.py::test_backwards_come_again[softmax]",),
    ),
    Mutant(
        "calls are kept whatever asks for a gradient",
        "runtime/switch.py",
        "address & 15, get_num_threads(), asked)",
        "address & 15, get_num_threads(), False)",
        ("tests/api/test_replays.py::test_a_kept_call_is_for_one_layout_and_what_asks",),
    ),
)
