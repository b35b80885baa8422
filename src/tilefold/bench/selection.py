"""The cases of a run: cases of a suite that fit the options, and new ones of any shape, dims, dtype or monoid."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from tilefold.bench.cases import DTYPES, Case, Suite
from tilefold.bench.monoid_cases import of_monoid
from tilefold.bench.operations import OPERATIONS
from tilefold.bench.ours import OURS
from tilefold.bench.results import SuiteResult
from tilefold.cli.dtypes import dtype_name
from tilefold.cli.fold_text import read_dims, read_shape
from tilefold.errors import ArgumentError
from tilefold.planner.problem.canonical import normalize_dims


@dataclass(frozen=True)
class Selection:
    """The part of a suite that a run measures. None selects all.

    `dims` are texts as `--dims` takes them, `0,2` for two that are reduced together. `monoid` is measured in place of the
    suite's operations; its answers may differ from the definition's by `tolerance` of them, beside rounding. `names` are of
    cases, as results write them.
    """

    size: str = "full"
    seed: int = 0
    count: int = 60
    shapes: tuple[str, ...] | None = None
    dtypes: tuple[str, ...] | None = None
    operations: tuple[str, ...] | None = None
    dims: tuple[str, ...] | None = None
    headline: bool = False
    part: tuple[int, int] = (1, 1)
    monoid: str | None = None
    tolerance: float | None = None
    names: tuple[str, ...] | None = None


def asked_suite(suite: Suite, asked: Selection) -> Suite:
    """The suite, or its problems with the monoid that was asked for in place of its operations.

    Raises:
        ArgumentError: the monoid does not fit, or the suite's problems are no folds.
    """
    if asked.monoid is None:
        return suite
    make = of_monoid(asked.monoid, asked.tolerance)

    def cases(size: str, seed: int = 0, count: int = 60) -> tuple[Case, ...]:
        problems = suite.select(size, seed, 2 * count)  # random ones are folds every other time
        folds = [c for c in problems if c.operation in OPERATIONS]
        of_floats = [c for c in folds if OPERATIONS[c.operation].floats]
        found = [make("", c.dim, c.shape, c.dtype, c.layout) for c in of_floats or folds]
        named = tuple({case.name: case for case in found if case}.values())
        return named[:count] if suite.drawn else named

    if (
        suite.products
        or suite.cpu_only
        or not any(c.operation in OPERATIONS for c in suite.select("small", 0, 2))
    ):
        raise ArgumentError(
            f"bench: --monoid must be given a suite of folds, got {suite.name}; take folds, real or shapes"
        )
    drawn = cases if suite.drawn else None
    return replace(suite, cases=cases, drawn=drawn, make=make, variants=(OURS,))


def selected(suite: Suite, asked: Selection) -> list[Case]:
    """The selected cases: the suite's in its order, then cases of other shapes.

    Raises:
        ArgumentError: a word that names nothing, or nothing is left.
    """
    suite = asked_suite(suite, asked)
    cases = list(suite.select(asked.size, asked.seed, asked.count))
    dtypes = None if asked.dtypes is None else tuple(map(known_dtype, asked.dtypes))
    words = replace(asked, dtypes=dtypes)
    cases = filtered(cases, words) if asked.shapes is None else fitting(suite, cases, words)
    if asked.names is not None:
        cases = _named(cases, asked.names)
    if asked.headline:
        cases = [case for case in cases if case.headline]
    number, parts = asked.part
    cases = cases[number - 1 :: parts]
    if not cases:
        raise ArgumentError(
            f"bench: the options must leave a case of {suite.name}, got none; leave out --headline or --part"
        )
    return cases


def _named(cases: Sequence[Case], names: Sequence[str]) -> list[Case]:
    """The cases of these names, which must exist."""
    there = {case.name: case for case in cases}
    for name in names:
        if name not in there:
            raise ArgumentError(
                f"bench: --cases must name cases that there are, got {name!r}; --dry-run lists them"
            )
    return [there[name] for name in dict.fromkeys(names)]


def known_dtype(text: str) -> str:
    """A dtype's name as results write it, from any spelling; other texts stay as they are."""
    named = {str(dtype).removeprefix("torch."): name for name, dtype in DTYPES.items()}
    return named.get(dtype_name(text) or "", text)


def dims_text(case: Case) -> str:
    """The reduced dims as `--dims` takes them."""
    return str(case.dim) if isinstance(case.dim, int) else ",".join(map(str, case.dims))


OF_A_CASE: tuple[tuple[str, str, Callable[[Case], str]], ...] = (
    ("--shapes", "shapes", lambda case: case.shape_text),
    ("--dims", "dims", dims_text),
    ("--dtype", "dtypes", lambda case: case.dtype),
    ("--operations", "operations", lambda case: case.operation),
)


def filtered(cases: list[Case], asked: Selection) -> list[Case]:
    """The cases that have the given words; some case must have each word."""
    for flag, name, of in OF_A_CASE:
        wanted: tuple[str, ...] | None = getattr(asked, name)
        if wanted is None:
            continue
        there = dict.fromkeys(map(of, cases))
        for word in wanted:
            if word not in there:
                more = (
                    "leave it out" if flag == "--operations" else "leave it out, or name --shapes of your own"
                )
                raise ArgumentError(f"bench: {flag} must be of {', '.join(there)} here, got {word!r}; {more}")
        cases = [case for case in cases if of(case) in wanted]
    return cases


def fitting(suite: Suite, cases: Sequence[Case], asked: Selection) -> list[Case]:
    """The cases of the asked shapes: the suite's, by the words that it has, and new ones for shapes, dims and dtypes of which
    it has none.
    """
    _check_known("--operations", asked.operations, dict.fromkeys(case.operation for case in cases))
    _check_known("--dtype", asked.dtypes, DTYPES)
    found = [case for shape in asked.shapes or () for case in _of_shape(suite, cases, shape, asked)]
    names = {case.name: case for case in found}
    ours = [case for case in cases if case.name in names]
    return ours + [case for case in names.values() if case not in ours]


def _check_known(flag: str, words: Sequence[str] | None, known: Iterable[str]) -> None:
    for word in words or ():
        if word not in known:
            raise ArgumentError(
                f"bench: {flag} must be of {', '.join(known)} here, got {word!r}; leave it out"
            )


def _of_shape(suite: Suite, cases: Sequence[Case], shape: str, asked: Selection) -> list[Case]:
    """The cases of one asked shape. One that the suite has, but in no such dims and dtype, is made as well."""
    there = [{of(case) for case in cases} for _, _, of in OF_A_CASE]
    found: list[Case] = []
    wanted = list(itertools.product([shape], asked.dims or (None,), asked.dtypes or (None,)))
    for words in wanted:
        if all(word is None or word in some for word, some in zip(words, there, strict=False)):
            found += [case for case in cases if _fits(case, words, asked.operations)]
        else:
            found += new_cases(suite, cases, *words, asked.operations)
    if not found:
        found = [case for words in wanted for case in new_cases(suite, cases, *words, asked.operations)]
    if not found:
        raise ArgumentError(
            f"bench: --shapes must fit an operation of {suite.name} with these dims and dtypes, got {shape!r}; "
            "ask for others"
        )
    return found


def _fits(case: Case, words: Sequence[str | None], operations: Sequence[str] | None) -> bool:
    """Whether a case has the shape, dims and dtype, and one of the operations."""
    same = (word in (None, of(case)) for word, (_, _, of) in zip(words, OF_A_CASE, strict=False))
    return all(same) and (operations is None or case.operation in operations)


def new_cases(
    suite: Suite,
    cases: Sequence[Case],
    shape: str,
    dims: str | None,
    dtype: str | None,
    operations: Sequence[str] | None,
) -> Iterable[Case]:
    """Cases of a shape that the suite has not: by default all its operations, in their dtypes, along each dim in turn."""
    sizes = read_shape(shape)
    if suite.make is None or 0 in sizes:
        there = ", ".join(dict.fromkeys(case.shape_text for case in cases))
        rule = "sizes from 1 on" if suite.make else f"of {there} here"
        raise ArgumentError(f"bench: --shapes must be {rule}, got {shape!r}; leave it out")
    along: Iterable[int | tuple[int, ...]]
    if dims is None:
        along = [d for d, n in enumerate(sizes) if n > 1] or [len(sizes) - 1]
    else:
        given = normalize_dims(read_dims(dims), len(sizes), "bench")
        along = [given[0] if len(given) == 1 else given]
    kinds = dict.fromkeys(
        (case.operation, dtype or case.dtype)
        for case in cases
        if operations is None or case.operation in operations
    )
    found = (suite.make(name, dim, sizes, kind, None) for name, kind in kinds for dim in along)
    return [case for case in found if case is not None]


def in_order(result: SuiteResult) -> SuiteResult:
    """A result with its cases as its suite lists them, those of shapes that it does not list at the end."""
    from tilefold.bench.suites import load_suite

    suite = load_suite(result.suite)
    asked = {(run.settings.get("seed", 0), run.settings.get("count", 0)) for run in result.runs}
    listed = [
        case.name
        for size in ("full", "small")
        for seed, count in sorted(asked)
        for case in suite.select(size, seed, count)
    ]
    places = {name: place for place, name in enumerate(listed)}
    cases = sorted(result.cases, key=lambda case: places.get(case.name, len(places)))
    return replace(result, cases=tuple(cases))
