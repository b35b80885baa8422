"""Which of many drawn calls come nearest to the planner's limits.

    PYTHONPATH=src python benchmarks/limits.py 24000 700

Of so many calls on tensors of sizes near powers of two, and of so many backwards (`recording.plan_line`), those are taken
that come nearest to either side of a comparison, a minimum or a maximum of two numbers in the planner's sources, or that let
one of its conditions be true, or false. Their numbers are written to limits.json; `recording.py plans` then writes their
plans down.
"""

from __future__ import annotations

import ast
import builtins
import json
import operator
import sys
import tempfile
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NUMBERS = HERE / "limits.json"
OPERATORS = {
    "Lt": operator.lt,
    "LtE": operator.le,
    "Gt": operator.gt,
    "GtE": operator.ge,
    "Eq": operator.eq,
    "NotEq": operator.ne,
}
Key = tuple[str, object]
Nearest = dict[Key, tuple[float, tuple[str, int]]]  # how near a call came, and its kind and number


class Sites(ast.NodeTransformer):
    """Has comparisons and conditions tell what they saw."""

    def __init__(self, path: str) -> None:
        self.path = path

    def _told(self, name: str, node: ast.AST, *arguments: ast.expr) -> ast.Call:
        site = f"{self.path}:{node.lineno}:{node.col_offset}:{name}"  # type: ignore[attr-defined]  # expressions have places
        call = ast.Call(ast.Name(f"{name}__", ast.Load()), [ast.Constant(site), *arguments], [])
        return ast.copy_location(call, node)

    def visit(self, node: ast.AST) -> Any:
        """A node with what is below it, changed."""
        self.generic_visit(node)
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            node.test = self._told("truth", node.test, node.test)
        elif isinstance(node, ast.BoolOp):
            node.values = [self._told("truth", value, value) for value in node.values]
        elif isinstance(node, ast.Compare):
            return self._compared(node)
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("min", "max")
            and len(node.args) > 1 and not node.keywords and not any(isinstance(a, ast.Starred) for a in node.args)
        ):  # fmt: skip
            return self._told("ends", node, node.func, *node.args)
        return node

    def _compared(self, node: ast.Compare) -> ast.expr:
        """`a < b <= c` as `a < b and b <= c`: the planner's functions are pure."""
        sides, kinds = [node.left, *node.comparators], [type(op).__name__ for op in node.ops]
        if any(kind not in OPERATORS for kind in kinds):
            return node
        pairs: list[ast.expr] = [
            self._told("near", node, ast.Constant(i), ast.Constant(kind), *sides[i : i + 2])
            for i, kind in enumerate(kinds)
        ]
        return pairs[0] if len(pairs) == 1 else ast.copy_location(ast.BoolOp(ast.And(), pairs), node)


class Watch:
    """What the call at work came near to."""

    def __init__(self) -> None:
        self.found: Nearest = {}
        self.call = ("", 0)

    def _note(self, key: Key, distance: float) -> None:
        old = self.found.get(key)
        if old is None or distance < old[0]:
            self.found[key] = (distance, self.call)

    def _pair(self, site: str, a: Any, b: Any) -> None:
        if isinstance(a, int | float) and isinstance(b, int | float):
            self._note((site, (a > b) - (a < b)), abs(a - b) / max(abs(a), abs(b), 1) if a != b else 0.0)

    def near(self, site: str, place: int, kind: str, a: Any, b: Any) -> Any:
        """A comparison's answer."""
        self._pair(f"{site}{place}", a, b)
        return OPERATORS[kind](a, b)

    def ends(self, site: str, function: Any, *values: Any) -> Any:
        """The minimum or maximum."""
        for i, value in enumerate(values[1:]):
            self._pair(f"{site}{i}", values[0], value)
        return function(*values)

    def truth(self, site: str, value: Any) -> Any:
        """A condition as it is."""
        self._note((site, bool(value)), 0.0)
        return value


def watched() -> Watch:
    """From now on modules of the planner are imported with their sites told."""
    watch, compiled = Watch(), SourceFileLoader.source_to_code

    def to_code(self: Any, data: Any, path: Any, *rest: Any, **options: Any) -> Any:
        name = str(path).rpartition("tilefold/planner/")
        if not name[1]:
            return compiled(self, data, path, *rest, **options)
        tree = ast.fix_missing_locations(Sites(name[2]).visit(ast.parse(data)))
        return compile(tree, path, "exec", dont_inherit=True)

    SourceFileLoader.source_to_code = to_code  # type: ignore[assignment,method-assign]
    for name in ("near", "ends", "truth"):
        setattr(builtins, f"{name}__", getattr(watch, name))
    sys.pycache_prefix = tempfile.mkdtemp()
    sys.dont_write_bytecode = True
    return watch


def main(at_limits: int, backwards: int) -> None:
    """Draw, and write the numbers."""
    watch = watched()
    import recording  # after the loader's change

    for kind, count in (("limits", at_limits), ("backward", backwards)):
        for number in range(count):
            watch.call = kind, number
            recording.plan_line(kind, number, launches=False)
    taken = sorted({call for _, call in watch.found.values()})
    chosen = {kind: [number for of, number in taken if of == kind] for kind in ("limits", "backward")}
    print({kind: len(numbers) for kind, numbers in chosen.items()})
    NUMBERS.write_text(json.dumps(chosen) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
