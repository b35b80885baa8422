"""Faults that are drawn, not chosen: a seed draws lines of src/tilefold, and of each line one change of its syntax tree.

Drawn are lines that hold something to change, each as likely as another: a comparison, `and` or `or`, a `not`, a sum or
product, a number, True or False, any, all, min or max, two arguments of a call, a statement without a name. A fault's tests
are the nearest: those of its module's name and those that import it, in its package's folder; of a module without any, the
tests of the modules that import it, and so on; of these the first, and before the others those that were seen to run its line
(`ran`), which run first. A raise is also asked for in test_errors.py, where refusals are. What survives is judged by hand:
some changes alter nothing that a user would notice.
"""

from __future__ import annotations

import ast
import functools
import random
import re
from collections.abc import Iterator
from pathlib import Path

from mutants.mutant import Mutant
from mutants.ran import NEAR, PACKAGE, ROOT, TESTS, files_that_ran

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr,
}  # fmt: skip
NAMES = {"any": "all", "all": "any", "min": "max", "max": "min", "maximum": "minimum", "minimum": "maximum"}
SYMMETRIC = {*NAMES, "isinstance", "issubclass", "zip", "getattr", "hasattr", "print"}


def drawn(seed: int, count: int) -> tuple[Mutant, ...]:
    """The faults of a seed, in the order in which they are drawn: of more, the first are the same."""
    lines = sorted({(path, line) for path in sorted(PACKAGE.rglob("*.py")) for line in changes(path)})
    random.Random(seed).shuffle(lines)
    return tuple(_drawn(seed, path, line) for path, line in lines[:count])


def _drawn(seed: int, path: Path, line: int) -> Mutant:
    source = random.Random(f"{seed} {path.relative_to(PACKAGE).as_posix()} {line}")
    return _of(path, source.choice(changes(path)[line]))


def _of(path: Path, change: tuple[ast.AST, str]) -> Mutant:
    node, new = change
    text, lines = path.read_text(encoding="utf-8"), _starts(path)
    begin = lines[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]  # expressions and statements have places
    end = lines[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
    raw = text.encode()
    name = path.relative_to(PACKAGE).as_posix()
    old = " ".join(raw[begin:end].decode().split())
    said = f"{name}:{node.lineno} {old} -> {' '.join(new.split())}"  # type: ignore[attr-defined]
    changed = (raw[:begin] + new.encode() + raw[end:]).decode()
    refusals = ("tests/test_errors.py",) if _is_where_calls_are_refused(path, node) else ()
    first, *others = nearest(path)
    ran = files_that_ran(path, node.lineno)  # type: ignore[attr-defined]
    near = sorted([*dict.fromkeys([first, *ran, *others])][:NEAR], key=lambda file: file not in ran)
    return Mutant(said, name, text, changed, tests=tuple(dict.fromkeys([*near, *refusals])))


def _is_where_calls_are_refused(path: Path, node: ast.AST) -> bool:
    """Whether it is a raise, or stands in a function that has one, of a module without tests of its name."""
    if isinstance(node, ast.Raise):
        return True
    functions = [
        f for f in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(f, ast.FunctionDef)
    ]
    line: int = node.lineno  # type: ignore[attr-defined]
    around = [f for f in functions if f.lineno <= line <= (f.end_lineno or line)]
    raises = any(isinstance(n, ast.Raise) for f in around for n in ast.walk(f))
    return raises and not any(_likeness(ROOT / f, path) == 2 for f in nearest(path))


@functools.cache
def _starts(path: Path) -> list[int]:
    """At which byte each line begins."""
    starts = [0]
    for line in path.read_bytes().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


@functools.cache
def changes(path: Path) -> dict[int, list[tuple[ast.AST, str]]]:
    """By line: the nodes that can be changed, and what would stand in their place."""
    found: dict[int, list[tuple[ast.AST, str]]] = {}
    for node in _walked(ast.parse(path.read_text(encoding="utf-8"))):
        for new in _changed(node):
            found.setdefault(node.lineno, []).append((node, new))  # type: ignore[attr-defined]  # only such nodes are changed
    return found


def _walked(node: ast.AST) -> Iterator[ast.AST]:
    """Every node that runs: no annotations, decorators, messages, nor what only a type checker reads."""
    if isinstance(node, ast.JoinedStr | ast.Raise) or (
        isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
    ):
        if isinstance(node, ast.Raise):
            yield node
        return
    yield node
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "ctx"):
            continue
        if (
            isinstance(node, ast.keyword) and node.arg == "strict"
        ):  # zip's is an assertion: no right program shows it
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _walked(child)


def _changed(node: ast.AST) -> Iterator[str]:
    """What could stand in a node's place; brackets keep it one operand."""
    if isinstance(node, ast.Compare):
        for at, op in enumerate(node.ops):
            for other in COMPARISONS[type(op)]:
                ops = [*node.ops[:at], other(), *node.ops[at + 1 :]]
                yield f"({ast.unparse(ast.Compare(node.left, ops, node.comparators))})"
    elif isinstance(node, ast.BoolOp):
        other_op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield f"({ast.unparse(ast.BoolOp(other_op, node.values))})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not _is_text(node):
        yield f"({ast.unparse(ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right))})"
    elif isinstance(node, ast.Constant):
        yield from _numbers(node.value)
    elif isinstance(node, ast.Call):
        yield from _calls(node)
    elif isinstance(node, ast.Raise | ast.Continue | ast.Break | ast.AugAssign) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ):
        yield "pass"


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(n, ast.JoinedStr) or (isinstance(n, ast.Constant) and isinstance(n.value, str))
        for n in (node.left, node.right)
    )


def _numbers(value: object) -> Iterator[str]:
    if isinstance(value, bool):
        yield str(not value)
    elif isinstance(value, int):
        yield str(value + 1)
        if value > 0:
            yield str(value - 1)
    elif isinstance(value, float):
        yield repr(2 * value if value else 1.0)


def _calls(node: ast.Call) -> Iterator[str]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
    if name in NAMES:
        other = (
            ast.Attribute(node.func.value, NAMES[name])
            if isinstance(node.func, ast.Attribute)
            else ast.Name(NAMES[name])
        )
        yield ast.unparse(ast.Call(other, node.args, node.keywords))
    first = node.args[:2]
    plain = len(first) == 2 and not any(
        isinstance(a, ast.Starred | ast.Constant | ast.JoinedStr | ast.Lambda) for a in first
    )
    if plain and name not in SYMMETRIC and ast.dump(first[0]) != ast.dump(first[1]):
        yield ast.unparse(ast.Call(node.func, [first[1], first[0], *node.args[2:]], node.keywords))


# ------------------------------------------------------------------------------------------------ the nearest tests


FEW = 4  # test files of a folder: all of them are near to its modules
# What a module is tested by under another name, and the modules of a folder together.
COMMON = {
    "__main__": ("test_cli.py",),  # nothing imports it
    "backends/triton/kernels/scan_prefixes": ("backends/test_scan_sums.py", "backends/test_scans_across.py"),
    "backends/triton/kernels/scan_elements": ("backends/test_scans_across.py",),
    "backends/triton/kernels/scans": ("backends/test_scans_across.py", "backends/test_scan_sums.py"),
    "backends/triton/kernels/map_tiles": ("backends/test_maps_offline.py", "backends/test_interpret.py"),
    "backends/triton/kernels/map_blocks": ("backends/test_maps_offline.py", "backends/test_interpret.py"),
    "backends/triton/kernels/map_groups": ("backends/test_groups_offline.py",),
    "backends/triton/kernels/product_rows": ("planner/products/test_row.py", "backends/test_products.py"),
    "backends/triton/kernels/moves": ("api/test_transpose.py",),
    "backends/triton/kernels/selections": ("api/test_topk.py",),
    "backends/triton/product_calls": ("planner/test_plans.py", "backends/test_packed_products.py"),
    # what launches are given is written down with the plans
    **{
        f"backends/triton/{name}": ("planner/test_plans.py",)
        for name in (
            "call",
            "lower",
            "atomic_calls",
            "group_calls",
            "map_calls",
            "move_calls",
            "scan_calls",
            "segment_calls",
            "selection_calls",
            "shared_calls",
        )
    },
    "backends/triton/launch": ("backends/test_executable.py",),
    "backends/cpu/row_tiles": ("api/test_reduce_map.py",),
    "planner/moves": ("api/test_transpose.py",),
    "planner/groups": ("backends/test_groups_offline.py",),
    "planner/products/operands": ("planner/products/test_matmul.py", "api/test_products.py"),
    **{f"api/{name}_gradients": ("api/test_other_operations.py",) for name in ("product", "move", "segment")},
    "api/products": ("api/test_other_operations.py",),
    "api/on_cpu": ("api/test_other_operations.py",),
    "planner/problem/validate": ("api/test_reduce.py",),
    "backends/cpu/selecting": ("api/test_topk.py",),
    "backends/cpu/torch_product": ("api/test_on_cpu.py",),
    "api/matmul": ("api/test_products.py",),
    "functional": ("functional/test_functional.py", "functional/test_corners.py"),
    "algebra/derivatives": ("api/test_gradients.py",),
    "bench/result_commands": ("bench/test_compare.py", "bench/test_plots.py", "bench/test_selection.py"),
    "checkpoints/tables": ("checkpoints/test_describe.py",),
    "cli/plan": ("test_cli.py",),
    "bench/ours": ("bench/test_suites.py",),
    "bench/suites": ("bench/test_suites_peers.py",),
    "planner": ("planner/test_plans.py",),
    "backends/triton": ("backends/test_interpret.py", "fuzz/test_fuzz.py"),
    "xray/capture": (
        "xray/capture/test_capture.py",
        "xray/capture/test_compiled.py",
        "xray/capture/test_script.py",
    ),
    "xray/machine": ("xray/test_instructions.py", "xray/test_kernels.py"),
    "xray/observe": ("xray/observe/test_planted.py",),
    "xray/render": ("xray/test_command.py",),
}
SLOW = ("backends/triton",)  # of which files named alike go first


@functools.cache
def nearest(path: Path) -> tuple[str, ...]:
    """The test files nearest to a module, at most three: where tests are named like it, its own; else also those of its
    package's modules that import it, of what imports these, and so on; its folder's, if these are all; those of what imports
    it anywhere. Of several as near those first that name it most. What its folder has in common comes behind its own.
    """
    name = path.relative_to(PACKAGE).as_posix()
    keys = [of for of in COMMON if name.startswith((f"{of}/", f"{of}."))]
    common = [TESTS / f for of in keys if of not in SLOW for f in COMMON[of]]
    slow = [TESTS / f for of in keys if of in SLOW for f in COMMON[of]]
    package = PACKAGE / path.relative_to(PACKAGE).parts[0]
    folder = sorted([*_below(TESTS / package.stem), *TESTS.glob(f"test_{package.stem}*.py")])
    found: dict[Path, None] = {}
    for below in (package, PACKAGE):
        for tests in _levels(path, below):
            found |= dict.fromkeys(
                sorted(tests, key=lambda f: (-_likeness(f, path), -_mentions(f, path), len(imported(f)), f))
            )
            if len(found) >= NEAR or any(_likeness(f, path) for f in found):
                mine = [f for f in found if _likeness(f, path) == 2]
                alike = [f for f in found if slow and _likeness(f, path)]
                return _named([*mine, *common, *alike[:2], *slow, *found])
        found |= dict.fromkeys(folder if len(folder) <= FEW else ())
    return _named([*common, *slow, *found, *folder])


def _named(files: list[Path]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(f.relative_to(ROOT).as_posix() for f in files))[:NEAR]


def _levels(path: Path, below: Path) -> Iterator[set[Path]]:
    """The own tests of a module, of the modules in a folder that import it, of those that import these, and so on."""
    front, seen = [path], {path}
    while front:
        yield {test for module in front for test in own(module, below == PACKAGE)}
        users = {user for module in front for user in importers(module) if user.is_relative_to(below)}
        front = sorted(users - seen)
        seen.update(front)


@functools.cache
def own(path: Path, anywhere: bool) -> tuple[Path, ...]:
    """The tests that are named like a module, those in its package's folder or anywhere that import it."""
    folders = path.relative_to(PACKAGE).parts[:-1]
    every = _below(TESTS)
    using = [f for f in every if _dotted(path) in imported(f)]
    beside = TESTS.joinpath(*folders[:1])
    near = [f for f in using if anywhere or f.parent == TESTS or f.is_relative_to(beside)]
    return tuple(dict.fromkeys([*(f for f in every if _likeness(f, path)), *near]))


def _below(folder: Path) -> list[Path]:
    """The test files of a folder. Tests that need a device are left out."""
    return [
        f for f in sorted(folder.rglob("test_*.py")) if "gpu" not in f.stem and f.parent.name != "mutants"
    ]


def _likeness(test: Path, path: Path) -> int:
    """2 of a test file with the name of a module or its folder, beside it or above; 1 with a word of its name in its package.
    Kernels and what calls them are also tested where their plans and operations are.
    """
    *folders, name = path.relative_to(PACKAGE).with_suffix("").parts
    if test.parent == TESTS:
        return 2 * (test.stem == f"test_{name}")
    on_gpus = folders[:2] == ["backends", "triton"]
    packages = ("backends", "planner", "api") if on_gpus else folders[:1]
    if not any(test.is_relative_to(TESTS / f) for f in packages) or (
        on_gpus and "cpu" in f"{test.parent.name} {test.stem}"
    ):
        return 0
    if test.parent.name in folders and test.stem in (f"test_{name}", *(f"test_{f}" for f in folders[1:])):
        return 2
    words = [word.removesuffix("s") for word in name.split("_") if len(word) > 2]
    return int(any(re.fullmatch(rf"test_(\w+_)?{word}s?(_\w+)?", test.stem) for word in words))


def _mentions(test: Path, path: Path) -> int:
    """How often a test file names a module, in the singular too: of files as near as others, which is about it. Kernels have
    names of many things: of them the last word counts, in the file's name."""
    if path.parent.name == "kernels":
        return int(path.stem.split("_")[-1].removesuffix("s") in test.stem)
    return len(re.findall(rf"(?<![a-z]){path.stem.removesuffix('s')}", test.read_text(encoding="utf-8")))


@functools.cache
def importers(path: Path) -> tuple[Path, ...]:
    """The modules of the library that import a module; the list of public names counts for none."""
    others = [p for p in sorted(PACKAGE.rglob("*.py")) if p not in (path, PACKAGE / "__init__.py")]
    return tuple(p for p in others if _dotted(path) in imported(p))


def _dotted(path: Path) -> str:
    return ".".join(("tilefold", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


@functools.cache
def imported(path: Path) -> frozenset[str]:
    """The dotted names that a file imports anywhere, as modules or from them."""
    names = set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(n for n in names if re.match(r"tilefold\b", n))
