"""The semantic corners of reductions, with torch's answers as the rule: the table below says which test shows which.

Each runs on the default backend and on the forced lanes.
"""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
import torch

import tilefold as tf
from tilefold import monoids
from tilefold.errors import TilefoldError
from tilefold.runtime.overrides import listed

NAN, INF = float("nan"), float("inf")


# Corner -> where it is shown. Corners of folds that are not there yet name the fold that brings them.
CORNERS = {
    "dim=()": ["test_empty_dim", "test_empty_dim_of_norm_folds_all"],
    "empty": ["test_empty_input", "test_logsumexp_of_nothing", "test_extremes_of_nothing"],
    "0-d": ["test_zero_d", "test_zero_d_everywhere"],
    "the same dim twice": ["test_repeated_dim", "test_argmax_takes_no_tuple"],
    "NaN": ["test_nan", "test_nan_in_every_place"],
    "ties": ["test_ties", "test_ties_in_every_place"],
    "gradients (ties, prod, norm)": ["test_no_gradient_is_ever_lost"],
    "logsumexp": ["test_logsumexp_at_infinity"],
    "integers": ["test_integers", "test_int64_wraps", "test_any_and_all_of_uint8"],
    "half types": ["test_half_types"],
    "complex": ["test_complex_is_refused"],
    "strides": ["test_strides", "test_negative_and_conjugate_bits", "test_overlapping_out"],
    "misaligned storage": ["test_misaligned_storage", "backends/test_gpu.py::test_cases"],
    "> 2^31 elements": ["test_offsets_beyond_32_bits", "backends/test_gpu.py::test_beyond_32_bits"],
    "grid y, z > 65535": ["test_more_results_than_a_grid_s_second_axis"],
    "CUDA graphs": ["backends/test_gpu.py::test_other_stream_and_graph"],
    "streams": ["backends/test_gpu.py::test_other_stream_and_graph"],
    "fork": [
        "test_running.py::test_the_environment_chooses_a_backend_and_a_forked_child_folds",
        "test_house.py::test_import_is_light",
    ],
    "inference mode": ["test_inference_mode", "test_running.py::test_inference_mode_makes_inference_tensors"],
    "autocast": ["test_running.py::test_autocast_changes_no_dtype"],
    "K = 0 in a matmul": [
        "planner/products/test_matmul.py::test_nothing_to_fold_leaves_the_epilogue_its_bias"
    ],
    "several devices": ["backends/test_gpu.py::test_a_device_that_is_not_current"],
    "vmap": ["test_vmap_works_or_says_why_not"],
}
LATER = {"softmax": "normalise", "cross-entropy": "normalise"}


def test_every_corner_has_its_tests():
    here = Path(__file__)
    for tests in CORNERS.values():
        for test in tests:
            file, _, name = test.rpartition("::")
            tree = ast.parse((here.parents[1] / file if file else here).read_text())
            assert name in {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}, test


@pytest.fixture(autouse=True, params=["auto", "cpu"])
def cpu(request):
    with tf.backend(request.param):
        yield


def same(got, want):
    torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["sum", "mean", "amax", "amin", "any", "all", "var", "std"])
def test_empty_dim(name):
    """Folds everything, but any and all fold nothing."""
    x = torch.tensor([[1.0, 0.0], [3.0, 4.0]])
    got = getattr(tf, name)(x, dim=())
    assert got.shape == (x.shape if name in ("any", "all") else ())
    same(got, getattr(torch, name)(x, dim=()))


def test_empty_dim_of_norm_folds_all():
    x = torch.tensor([[3.0, 4.0]])
    same(tf.vector_norm(x, dim=()), torch.linalg.vector_norm(x, dim=()))
    same(tf.norm(x, dim=()), torch.tensor(5.0))
    same(tf.logsumexp(x, ()), x.flatten().logsumexp(0))  # torch's own answer is an error about shapes
    same(tf.count_nonzero(x, ()), torch.count_nonzero(x, ()))


@pytest.mark.parametrize("name", ["sum", "prod", "any", "all", "mean", "var"])
@pytest.mark.filterwarnings("ignore:.*degrees of freedom.*:UserWarning")  # torch warns, we document it
def test_empty_input(name):
    """Sum 0, prod 1, any False, all True, mean and var NaN: of everything, along a dim, into no results."""
    same(getattr(tf, name)(torch.ones(0)), getattr(torch, name)(torch.ones(0)))
    for shape in ((3, 0), (0, 3), (2, 0, 3)):
        for dim in range(len(shape)):
            same(getattr(tf, name)(torch.ones(shape), dim), getattr(torch, name)(torch.ones(shape), dim))


def test_logsumexp_of_nothing():
    same(tf.logsumexp(torch.ones(0), 0), torch.tensor(-INF))


@pytest.mark.parametrize("dim", [None, 0])
@pytest.mark.parametrize("name", ["amax", "amin", "argmax", "argmin"])
def test_extremes_of_nothing(name, dim):
    if dim is None and name.startswith("am"):
        kind, call = RuntimeError, lambda: getattr(tf, name)(torch.ones(0))
    else:
        kind, call = IndexError, lambda: getattr(tf, name)(torch.ones(0), dim)
    with pytest.raises(kind, match="at least one element"):
        call()


@pytest.mark.parametrize("dim", [0, -1])
def test_zero_d(dim):
    same(tf.sum(torch.tensor(3.0), dim), torch.tensor(3.0))
    with pytest.raises(IndexError, match="must be in"):
        tf.sum(torch.tensor(3.0), 1)


@pytest.mark.parametrize(
    "name", ["sum", "prod", "mean", "amax", "argmax", "any", "all", "logsumexp", "max", "var_mean"]
)
@pytest.mark.filterwarnings("ignore:.*degrees of freedom.*:UserWarning")  # torch warns, we document it
def test_zero_d_everywhere(name):
    for x in (torch.tensor(3.0), torch.tensor(NAN), torch.tensor(-INF)):
        for dim in (0, -1):
            same(tuple(as_tuple(getattr(tf, name)(x, dim))), tuple(as_tuple(getattr(torch, name)(x, dim))))
        with pytest.raises(IndexError, match=r"must be in \[-1, 0\] for a 0-D tensor"):
            getattr(tf, name)(x, 1)


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize(
    "name", ["sum", "mean", "amax", "any", "all", "logsumexp", "var", "count_nonzero", "bitwise_or"]
)
@pytest.mark.parametrize("dims", [(0, 0), (0, -2), (-1, 1)], ids=str)
def test_repeated_dim(dims, name):
    x = torch.ones(2, 2, dtype=torch.int32 if name == "bitwise_or" else torch.float32)
    with pytest.raises(RuntimeError, match=r"each dim may be named once, got .*appears multiple times"):
        getattr(tf, name)(x, dims)


def test_argmax_takes_no_tuple():
    with pytest.raises(TypeError, match="one int"):
        tf.argmax(torch.ones(2, 2), (0, 1))


def test_nan():
    x = torch.tensor([1.0, NAN, 5.0, NAN])
    for fold in (tf.max, tf.min, tf.amax, tf.amin):
        assert fold(x).isnan()
    assert tf.argmax(x) == 1
    assert tf.argmin(x) == 1
    assert tf.any(torch.tensor([NAN]))


@pytest.mark.filterwarnings("ignore:.*degrees of freedom:UserWarning")  # one element, as torch says too
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 1025])
def test_nan_in_every_place(length, dtype):
    """One NaN, then a later one too, walks through a row: extremes give NaN, positions the first."""
    places = sorted({0, 1, length // 2, length - 2, length - 1} & set(range(length)))
    x = torch.arange(float(length)).fmod(7).to(dtype).repeat(len(places), 1)
    for row, place in enumerate(places):
        x[row, place] = NAN
        x[row, place + (length - place) // 2 :: 2] = NAN
    for name in ("amax", "amin", "sum", "mean", "prod", "logsumexp", "var", "norm"):
        assert getattr(tf, name)(x, dim=1).isnan().all(), name
    for name in ("argmax", "argmin"):
        assert getattr(tf, name)(x, 1).tolist() == places, name
    assert tf.max(x, 1).indices.tolist() == places
    assert all(v.isnan().all() for v in tf.aminmax(x, dim=1))


def test_ties():
    assert tf.argmax(torch.ones(2)) == 0
    assert tf.max(torch.ones(1, 3), 1).indices.item() == 0


@pytest.mark.parametrize("length", [2, 63, 65, 129, 1025])
def test_ties_in_every_place(length):
    """Zeros of both signs are equal; of equals the first wins, wherever it stands."""
    x = -torch.ones(length, length)
    x.fill_diagonal_(0.0)
    x[:, -1] = -0.0
    places = list(range(length))
    assert tf.argmax(x, 1).tolist() == places
    assert tf.argmin(-x, 1).tolist() == places
    assert tf.argmax(x, 0).tolist() == [*places[:-1], 0]
    assert tf.min(-x, 1).indices.tolist() == places


@pytest.mark.parametrize("name", ["sum", "prod", "max", "var", "logsumexp", "norm", "amax"])
def test_no_gradient_is_ever_lost(name):
    """A result that has one; never a detached result."""
    x = torch.arange(3.0, requires_grad=True)
    made = getattr(tf, name)(x, dim=0)
    assert (made.values if name == "max" else made).requires_grad
    with torch.no_grad():
        getattr(tf, name)(x, dim=0)


@pytest.mark.parametrize("name", ["argmax", "any"])
def test_what_has_no_gradient_in_torch_has_none(name):
    assert not getattr(tf, name)(torch.ones(3, requires_grad=True), dim=0).requires_grad


@pytest.mark.parametrize("values", [[-INF, -INF], [1.0, INF], [-INF, INF], [NAN, INF]], ids=str)
@pytest.mark.parametrize("length", [2, 65, 1025])
def test_logsumexp_at_infinity(values, length):
    """All -inf gives -inf, any +inf gives inf, NaN goes before both."""
    x = torch.full((3, length), values[0])
    x[0, 0] = x[1, length // 2] = x[2, -1] = values[1]
    same(tf.logsumexp(x, 1), torch.logsumexp(x, 1))
    same(tf.logsumexp(x.T, 0), torch.logsumexp(x, 1))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.int32, torch.uint8], ids=str)
def test_integers(dtype):
    x = torch.tensor([0, 1, 1, 3]).to(dtype)
    for name in ("sum", "prod", "any", "all", "count_nonzero"):
        torch.testing.assert_close(getattr(tf, name)(x), getattr(torch, name)(x))
    same(tf.logsumexp(x, 0), torch.logsumexp(x.float(), 0))
    with pytest.raises(RuntimeError, match="float"):
        tf.mean(x)


def test_int64_wraps():
    x = torch.tensor([2**63 - 1, 1])
    assert tf.sum(x) == -(2**63)
    same(tf.prod(torch.full((70,), 3)), torch.full((70,), 3).prod())
    same(tf.sum(torch.full((300,), 127, dtype=torch.int8)), torch.tensor(38100))


def test_any_and_all_of_uint8():
    x = torch.tensor([[0, 3], [0, 0]], dtype=torch.uint8)
    for name in ("any", "all"):
        got = getattr(tf, name)(x, 1)
        assert got.dtype == torch.uint8
        assert torch.equal(got, getattr(torch, name)(x, 1))


def test_half_types():
    ones = torch.ones(70000, dtype=torch.float16)
    assert tf.sum(ones) == INF
    assert tf.sum(ones, dtype=torch.float32) == 70000
    assert tf.mean(ones) == 1
    assert tf.sum(torch.ones(100000, dtype=torch.bfloat16)) == 99840, "one rounding, at the end"


@pytest.mark.parametrize("name", ["amax", "sum", "logsumexp", "any", "norm", "mean"])
def test_complex_is_refused(name):
    with pytest.raises(RuntimeError, match=r"view_as_real|must be floating point"):
        getattr(tf, name)(torch.ones(2, dtype=torch.complex64), dim=0)


def test_strides():
    x = torch.arange(24.0).reshape(4, 6)
    views = (
        x[::2, 1::2],
        x.T,
        x[:1].expand(5, 6),
        x.flatten()[1:],
        x[:, :1].expand(4, 7),
        x.as_strided((3, 5), (1, 2)),
    )
    for view in views:
        for dim in range(view.ndim):
            same(tf.sum(view, dim), view.contiguous().sum(dim))
            same(tf.max(view, dim), torch.max(view.contiguous(), dim))
            same(tf.logsumexp(view, dim), view.contiguous().logsumexp(dim))


def test_negative_and_conjugate_bits():
    x = torch._neg_view(torch.tensor([1.0, -2.0, 4.0]))
    imaginary = torch.tensor([1 + 2j, 3 - 5j]).conj().imag
    assert x.is_neg()
    assert imaginary.is_neg()
    for view in (x, imaginary):
        for name in ("sum", "prod", "amax", "argmin", "logsumexp", "norm"):
            same(getattr(tf, name)(view, dim=0), getattr(torch, name)(view.resolve_neg(), dim=0))


@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize("offset", [1, 3])
def test_misaligned_storage(dtype, offset):
    flat = torch.randint(-9, 9, (5 * 65 + offset,)).to(dtype)
    x = flat[offset:].view(5, 65)
    for dim in (0, 1):
        same(tf.sum(x, dim), x.clone().sum(dim))
        same(tf.max(x, dim), torch.max(x.clone(), dim))


def test_storage_misaligned_within_an_element():
    """As from a file read at an odd byte."""
    x = torch.frombuffer(
        bytearray(b"\0" + np.arange(65, dtype=np.float32).tobytes()), dtype=torch.float32, offset=1
    )
    assert x.data_ptr() % 4
    assert tf.sum(x) == 64 * 65 / 2
    assert tf.argmax(x) == 64


def test_offsets_beyond_32_bits():
    """Elements that lie more than 2^31 elements apart, without the memory between: their storage is never touched."""
    rows, apart = 3, 2**30 + 1
    flat = torch.empty(0, dtype=torch.int8).set_(untouched((rows - 1) * apart + 2))
    x = flat.as_strided((rows, 2), (apart, 1))
    for row in range(rows):
        x[row] = torch.tensor([row + 1, 10 * row])
    assert tf.sum(x, 0).tolist() == [6, 30]
    assert tf.sum(x, 1).tolist() == [1, 12, 23]
    assert tf.argmax(x) == 5
    assert tf.reduce(x, monoids.LAST, 0).tolist() == [3, 20]


def untouched(size: int) -> torch.UntypedStorage:
    """Address space, of which the system gives memory only where it is written (conftest would fill torch.empty)."""
    return torch.from_numpy(np.zeros(size, dtype=np.int8)).untyped_storage()


def test_more_results_than_a_grid_s_second_axis():
    x = torch.arange(3 * 65537).view(65537, 3)
    same(tf.sum(x, 1), x.sum(1))
    same(tf.sum(x.T, 0), x.sum(1))


def test_vmap_works_or_says_why_not():
    x, said = torch.randn(3, 5), "vmap"
    try:
        same(torch.vmap(tf.sum)(x), x.sum(1))
    except TilefoldError as error:
        said = str(error)
    assert "vmap" in said


def test_a_result_is_not_a_view_of_its_input():
    x = torch.ones(3, 1)
    tf.sum(x, 1).add_(1)
    assert torch.equal(x, torch.ones(3, 1))


@pytest.mark.parametrize("name", ["sum", "mean", "amax", "logsumexp", "var"])
def test_overlapping_out(name):
    x = torch.ones(3, 3)
    with pytest.raises(RuntimeError, match="overlap"):
        getattr(tf, name)(x, 0, out=x[0])
    with pytest.raises(RuntimeError, match="overlap"):
        getattr(tf, name)(x, 0, out=torch.ones(1).expand(3))


def test_inference_mode():
    with torch.inference_mode():
        assert tf.sum(torch.ones(3)).is_inference()


@pytest.mark.filterwarnings("ignore:.*degrees of freedom is:UserWarning")  # of the eager call
@pytest.mark.parametrize("shape", [(4, 1), (4, 0), (0, 4)], ids=str)
@pytest.mark.parametrize("name", ["var", "std_mean"])
def test_spreads_without_degrees_of_freedom_compile(name, shape):
    def call(x):
        return getattr(tf, name)(x, 1)

    torch._dynamo.reset()
    x = torch.ones(shape)
    want, got = call(x), torch.compile(call, fullgraph=True, backend="aot_eager")(x)
    for w, g in zip(listed(want), listed(got), strict=True):
        torch.testing.assert_close(g, w, rtol=0, atol=0, equal_nan=True)
