"""TTIR and TTGIR, as Triton prints them, are read."""

from __future__ import annotations

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tilefold.xray.ir import Tensor, read, spelled, tensor_type, tensors
from xray import kernels

TEXT = """\
#blocked = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#loc = loc("/k.py":3:0)
#loc9 = loc("/k.py":7:29)
#loc10 = loc("x"(#loc9))
#loc11 = loc(callsite(#loc1 at #loc10))
module attributes {"ttg.num-warps" = 4 : i32} {
  tt.func public @kernel(%x_ptr: !tt.ptr<f32> {tt.divisibility = 16 : i32} loc("x_ptr"(#loc)), %n: i32) {
    %c-1_i32 = arith.constant -1 : i32 loc(#loc1)
    %a, %b = tt.split %0 : tensor<64x2xf32, #blocked> -> tensor<64xf32, #blocked> loc(#loc9)
    %i:2 = "tt.reduce"(%x_4, %offs) <{axis = 0 : i32}> ({
    ^bb0(%i_5: f32 loc(callsite(#loc1 at #loc10)), %i_6: i32 loc(unknown)):
      tt.reduce.return %i_5, %i_6 : f32, i32 loc(#loc11)
    }) : (tensor<64xf32, #blocked>, tensor<64xi32, #blocked>) -> (f32, i32) loc(#loc11)
    %acc = scf.for %k = %c0 to %n step %c32 iter_args(%s = %cst, %t = %c1) -> (tensor<64xf32, #blocked>, i32)  : i32 {
      %y = arith.addf %s, %x : tensor<64xf32, #blocked> loc(#loc9)
      scf.yield %y, %t : tensor<64xf32, #blocked>, i32 loc(#loc9)
    } loc(#loc9)
    tt.return loc(#loc)
  } loc(#loc)
} loc(#loc)
#loc1 = loc("/triton/standard.py":191:40)
"""


def test_operations_of_a_text() -> None:
    function = read(TEXT)
    assert (function.name, function.parameters) == ("kernel", ("%x_ptr", "%n"))
    constant, split, reduce, returned, loop, add, _, _ = function.walk()
    assert constant.results == ("%c-1_i32",)
    assert split.results == ("%a", "%b")
    assert split.place == (("/k.py", 7),)
    assert reduce.results == ("%i#0", "%i#1")
    assert reduce.operands == ("%x_4", "%offs")
    assert reduce.place == (("/triton/standard.py", 191), ("/k.py", 7))
    assert reduce.blocks[0].arguments == ("%i_5", "%i_6")
    assert returned.operands == ("%i_5", "%i_6")
    assert loop.blocks[0].arguments == ("%k", "%s", "%t")
    assert loop.operands == ("%c0", "%n", "%c32", "%cst", "%c1")
    assert loop.carried == ("%cst", "%c1")
    assert add.row == TEXT.splitlines().index(
        "      %y = arith.addf %s, %x : tensor<64xf32, #blocked> loc(#loc9)"
    )
    assert list(function.aliases) == ["#blocked"]


def test_tensor_types() -> None:
    text = "tensor<4x8x!tt.ptr<f16>, #ttg.slice<{dim = 0, parent = #b}>>"
    assert tensor_type(text) == Tensor((4, 8), "!tt.ptr<f16>", "#ttg.slice<{dim = 0, parent = #b}>")
    assert tensor_type(text).pointee == "f16"
    assert [t.shape for t in tensors(f"({text}, tensor<2xi1>) -> f32")] == [(4, 8), (2,)]


@pytest.mark.parametrize("architecture", [80, 90, 100])
def test_what_triton_prints_is_read(architecture: int) -> None:
    source = ASTSource(
        fn=kernels.softmax, signature={"x_ptr": "*fp32", "y_ptr": "*fp32", "n": "i32", "BLOCK": "constexpr"},
        constexprs={"BLOCK": 256},
    )  # fmt: skip
    target, options = GPUTarget("cuda", architecture, 32), {"enable_fp_fusion": True}
    made = triton.compile(source, target=target, options=options).asm
    for text in (made["ttir"], made["ttgir"]):
        function = read(text)
        names = [o.name for o in function.walk()]
        assert names.count("tt.load") == names.count("tt.store") == 1
        assert names.count("tt.reduce") == 2
        known = {r for o in function.walk() for r in o.results} | set(function.parameters)
        known |= {a for o in function.walk() for b in o.blocks for a in b.arguments}
        assert {v for o in function.walk() for v in o.operands} <= known


SIBLINGS = """
module {
  tt.func public @k(%x: !tt.ptr<f32>, %n: i32) attributes {noinline = false} {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %a:2 = scf.for %i = %c0 to %n step %c1 iter_args(%s = %c0, %t = %c1) -> (i32, i32)  : i32 {
      %v = arith.addi %s, %i : i32
      scf.yield %v, %t : i32, i32
    }
    %b = scf.for %i = %c0 to %n step %c1 iter_args(%s = %c1) -> (i32)  : i32 {
      %v = arith.muli %s, %a#0 : i32
      scf.yield %v : i32
    }
    tt.return
  }
}
"""


def test_values_of_sibling_regions_have_names_of_their_own() -> None:
    function = read(SIBLINGS)
    results = [r for o in function.walk() for r in o.results]
    assert len(results) == len(set(results))
    added, multiplied = (
        next(o for o in function.walk() if o.name == n) for n in ("arith.addi", "arith.muli")
    )
    assert added.results != multiplied.results
    assert spelled(added.results[0]) == spelled(multiplied.results[0]) == "%v"
    assert [spelled(v) for v in multiplied.operands] == ["%s", "%a#0"]
    assert multiplied.operands[0] != added.operands[0]


def test_what_a_loop_s_variable_comes_from() -> None:
    function = read(SIBLINGS)
    first, second = (o for o in function.walk() if o.name == "scf.for")
    counter, *carried = first.blocks[0].arguments
    assert function.reached_from([counter]) == {counter, "%c0", "%n", "%c1"}
    assert "%n" not in function.reached_from([carried[1]])
    assert "%n" in function.reached_from([carried[0]])
    assert {"%a#0", "%c1"} <= function.reached_from(second.results)
    assert "%a#1" not in function.reached_from(second.results)
