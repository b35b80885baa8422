"""What the debug information of a PTX says of its lines."""

from __future__ import annotations

from tilefold.xray.cuda.readable.source_names import Names, places, waits
from tilefold.xray.cuda.readable.values import Place

FILES = '.file 1 "/a/mine.py"\n.file 2 "/b/standard.py"\n'


def found(text: str) -> list[tuple[int, ...]]:
    made = places(FILES + text)
    return [made[n][:3] for n in range(3, 3 + len(text.splitlines()))]


def test_the_outermost_call_of_a_comment() -> None:
    text = ".loc 2 9 4 // standard.py:9:4 @[ standard.py:20:8 @[ mine.py:7:12 ] ]\nadd;\n.loc 1 8 2\nadd;"
    assert found(text) == [(1, 7, 12), (1, 7, 12), (1, 8, 2), (1, 8, 2)]


def test_the_outermost_call_of_inlined_at() -> None:
    """A call's own place says in its turn where it was inlined."""
    text = """\
.loc 1 7 12
.loc 2 20 8, function_name $L__info_string0, inlined_at 1 7 12 // standard.py:20:8
.loc 2 9 4, function_name $L__info_string1, inlined_at 2 20 8 // standard.py:9:4
add;
.loc 1 8 2 // mine.py:8:2"""
    assert found(text) == [(1, 7, 12)] * 4 + [(1, 8, 2)]


def test_places_without_a_line_change_nothing() -> None:
    assert found(".loc 1 7 12\n.loc 1 0 0\nadd;") == [(1, 7, 12)] * 3


def test_registers_that_are_waited_for() -> None:
    text = "// begin inline asm\n// wait for regs: %r1,%r12\n\n\twgmma.wait_group.sync.aligned 0;\nadd;"
    assert waits(text) == {4: ("%r1", "%r12")}


# ------------------------------------------------------------------------------------------------------------ names
MINE, THEIRS = "/a/mine.py", "/b/triton/language/standard.py"
IR = f"""\
#loc1 = loc("{MINE}":7:8)
#loc2 = loc("{MINE}":7:20)
#loc3 = loc("{THEIRS}":3:4)
#loc4 = loc("{MINE}":40:9)
#loc5 = loc("{MINE}":9:1)
#loc11 = loc("mean"(#loc1))
#loc12 = loc("mean"(#loc2))
#loc13 = loc("step"(#loc4))
#loc14 = loc("y"(#loc5))
#loc21 = loc(callsite(#loc3 at #loc11))
#loc22 = loc(callsite(#loc13 at #loc14))
    %mean_1 = "tt.reduce"(%x) <{{axis = 0 : i32}}> ({{
    ^bb0(%a: f32 loc(#loc3), %b: f32 loc(#loc3)):
      %mean_2 = arith.addf %a, %b : f32 loc(#loc21)
      tt.reduce.return %mean_2 : f32 loc(#loc21)
    }}) : (tensor<1024xf32, #blocked>) -> f32 loc(#loc21)
    %mean_3 = arith.divf %mean_1, %n : f32 loc(#loc12)
    %step = tt.load %p, %m : tensor<64x!tt.ptr<f32>, #blocked> loc(#loc22)
    %y = math.log %step : tensor<64xf32, #blocked> loc(#loc14)
"""


def called(
    line: int, column: int, kind: str, step: str = "", around: tuple[int, int] | None = None
) -> str | None:
    points = (("mine.py", line, column), *(() if around is None else (("mine.py", *around),)))
    return Names(IR).at(Place(1, *(around or (line, column)), points), kind, step)


def test_a_line_s_result_has_its_name_and_what_leads_to_it_says_what_it_is() -> None:
    assert called(7, 20, "float") == "mean"
    assert called(7, 8, "float") == "mean_sum"
    assert called(7, 8, "float", "part") == "mean_part"


def test_values_of_a_called_function_have_its_names() -> None:
    assert called(40, 9, "float", around=(9, 1)) == "step", "a load gives what its pointers point to"
    assert called(41, 2, "float", around=(9, 1)) == "y", "what has no name there is what the caller names"


def test_places_and_conditions_are_not_called_as_numbers_are() -> None:
    assert called(40, 9, "int") == "step_at"
    assert called(40, 9, "bool") is None


def test_what_stands_at_a_loop_has_not_its_name() -> None:
    """Code moves out of loops, to the place of the loop, which has the name of what it gives."""
    loop = '#loc6 = loc("/a/mine.py":12:4)\n#loc15 = loc("total"(#loc6))\n'
    assert Names(loop + IR).at(Place(1, 12, 4, (("mine.py", 12, 4),)), "float") is None


def test_a_function_is_named_where_nothing_else_is_done() -> None:
    assert Names(IR).function(Place(1, 9, 1, (("mine.py", 9, 1),))) == "log"
    more = IR + "    %y_1 = arith.addf %y, %y : tensor<64xf32, #blocked> loc(#loc14)\n"
    assert Names(more).function(Place(1, 9, 1, (("mine.py", 9, 1),))) == ""


def test_tiles_are_results_of_lines() -> None:
    assert [(name, tile.shape, tile.element) for name, tile in Names(IR).tiles] == [
        ("step", (64,), "f32"),
        ("y", (64,), "f32"),
    ]
