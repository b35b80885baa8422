"""Arguments as one writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tilefold.errors import ArgumentError
from tilefold.xray.compile import Argument, argument
from tilefold.xray.compile.arguments import arguments
from tilefold.xray.execution import bits_of


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("*fp32", Argument("a", "fp32", True, divisor=16)),
        ("*bf16[1000]", Argument("a", "bf16", True, size=1000, divisor=16)),
        ("*fp32!div4", Argument("a", "fp32", True, divisor=4)),
        ("i32:1000", Argument("a", "i32", value=1000)),
        ("i32:1008", Argument("a", "i32", value=1008, divisor=16)),
        ("i32:1000!div16", Argument("a", "i32", value=1000, divisor=16)),
        ("i32:1008!div1", Argument("a", "i32", value=1008)),
        ("i64:-0x10", Argument("a", "i64", value=-16, divisor=16)),
        ("fp32:1e-6", Argument("a", "fp32", value=1e-6)),
        ("i32", Argument("a", "i32")),
    ],
)
def test_written(text: str, wanted: Argument) -> None:
    assert argument("a", text) == wanted


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ("*fp33", "must be written as a type"), ("x", "must be written as a type"), ("*fp32:3", "must be written as a type"),
        ("i32[3]", "must be written as a type"), ("i32:1.5", "must be a number of type i32"),
        ("i32:99999999999", "must fit i32"), ("u8:256", "must fit u8"), ("i32:8!div3", "power of two"),
        ("@nowhere.npy", "must name a .npy file"), (len, "must be text, a number, an array, a tensor or None"),
        (np.zeros(2, "c8"), "must be text"),
    ],
    ids=str,
)  # fmt: skip
def test_refused(given: Any, rule: str) -> None:
    with pytest.raises(ArgumentError, match=rule):
        argument("a", given)


def test_values_of_python() -> None:
    assert argument("a", 3) == Argument("a", "i32", value=3)
    assert argument("a", 2**31).type == "i64"
    assert argument("a", 2**63).type == "u64"
    assert argument("a", 0.5).type == "fp32"
    assert argument("a", True).type == "i1"
    assert argument("a", 1).constant
    assert not argument("a", True).constant


def test_arrays_and_tensors(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(6, dtype=np.int64).reshape(2, 3))
    found = argument("a", f"@{tmp_path / 'x.npy'}")
    assert (found.signature, found.size) == ("*i64", 6)
    assert found.data is not None
    assert found.data.tolist() == [0, 1, 2, 3, 4, 5]
    x = torch.arange(8, dtype=torch.bfloat16)[2:]
    found = argument("a", x)
    assert (found.signature, found.size, found.divisor, found.before) == ("*bf16", 6, 1, 2)
    assert found.data is not None
    assert torch.equal(torch.from_numpy(found.data).view(torch.bfloat16)[2:], x)
    found = argument("a", torch.empty(2, 3, device="meta"))
    assert (found.signature, found.size, found.data) == ("*fp32", 6, None)


@pytest.mark.parametrize("dtype", ["complex64", "U3", "float128", "datetime64[s]"])
def test_a_file_of_elements_that_triton_has_not(dtype: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(3, dtype=dtype))
    with pytest.raises(ArgumentError, match=rf"of a type that Triton has, got .*{dtype[:2]}"):
        argument("a", f"@{tmp_path / 'x.npy'}")


def test_a_file_with_a_promise(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(6, np.float32))
    assert argument("a", f"@{tmp_path / 'x.npy'}!div4").divisor == 4
    for promise in ("x", "3", "0", ""):
        with pytest.raises(ArgumentError, match=f"must be a power of two, got !div{promise}"):
            argument("a", f"@{tmp_path / 'x.npy'}!div{promise}")


def test_none_is_a_constant() -> None:
    found = argument("a", None)
    assert found.constant
    assert str(found) == "a=None"


@pytest.mark.parametrize(
    ("given", "shift"),
    [
        ("*fp32", 0), ("*fp32!div8", 8), ("*fp32!div1", 4), ("*u8!div1", 1), ("*fp64!div4", 8),
        (torch.zeros(8)[4:], 0),
    ],
    ids=str,
)  # fmt: skip
def test_an_address_is_as_aligned_as_its_elements_and_no_more_than_promised(given: Any, shift: int) -> None:
    assert argument("a", given).shift == shift


def test_bits() -> None:
    assert bits_of(argument("a", "fp32:1.0")) == 0x3F800000
    assert bits_of(argument("a", "bf16:1.0")) == 0x3F80
    assert bits_of(argument("a", "fp16:1.0")) == 0x3C00
    assert bits_of(argument("a", "i32:-1")) == 0xFFFFFFFF


def test_views_of_one_storage_are_known() -> None:
    x = torch.zeros(16)
    first, whole, halves, other, bits = (
        argument("a", t) for t in (x, x[3:], x.view(2, 8).t(), torch.zeros(16), x.view(torch.int32)[1:])
    )
    assert first.storage == whole.storage == halves.storage == bits.storage
    assert first.storage != other.storage
    held = np.zeros(16, np.float32)
    views = [
        argument("a", v) for v in (held, held[3:], held[::-1], held.reshape(2, 8).T, held.view(np.int32)[4:])
    ]
    assert {v.storage for v in views} == {views[0].storage}
    assert [v.before for v in views] == [0, 3, 15, 0, 4]
    assert [v.divisor for v in views] == [16, 1, 1, 16, 16]
    assert argument("a", torch.from_numpy(held)).storage == views[0].storage
    assert argument("a", held.copy()).storage != views[0].storage
    on_meta = torch.zeros(16, device="meta")
    assert argument("a", on_meta).storage == argument("a", on_meta[4:]).storage
    assert argument("a", on_meta).storage != argument("a", torch.zeros(16, device="meta")).storage


def test_elements_of_a_strided_array_are_where_they_lie() -> None:
    held = np.arange(12, dtype=np.float32).reshape(3, 4)
    turned = argument("a", held.T[1:])
    assert (turned.size, turned.before, turned.divisor) == (11, 1, 1)
    assert turned.data is not None
    assert turned.data.tolist() == list(range(12))


def test_another_argument_s_memory() -> None:
    x, y, n = arguments({"x": "*fp32[100]", "y": "&x", "n": 5})
    assert (y.name, y.signature, y.size, y.storage) == ("y", "*fp32", 100, x.storage)
    assert x.storage is not None
    assert n.storage is None
    for wrong in ("&z", "&n", "&y", "&"):
        with pytest.raises(
            ArgumentError, match=r"must share the memory of another pointer, got &.*; name one of x"
        ):
            arguments({"x": "*fp32", "y": wrong, "n": 5})
