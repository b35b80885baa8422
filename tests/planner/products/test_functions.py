"""When a user's function is run, and that nothing of it is kept but its graph."""

from __future__ import annotations

import functools
import gc
import itertools
import math as python_math
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch

import tilefold
from tilefold import math, monoids
from tilefold.api import products
from tilefold.planner.products import functions, unchanged
from tilefold.planner.products.epilogue import traced_ending

Tensor = torch.Tensor
A, B = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, -1.0], [1.0, -1.0]])
FACTOR = 2.0


class Scale:
    """Equal and hashed alike where its factors are equal: 1, 1.0 and True are."""

    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, x: Any, *others: Any) -> Any:
        return x * self.by

    def method(self, x: Any, *others: Any) -> Any:
        return x * self.by

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scale) and self.by == other.by

    def __hash__(self) -> int:
        return hash(self.by)


@dataclass
class Sign:
    """A function that compares by value, so that it has no hash."""

    by: float

    def __call__(self, x: Any, *others: Any) -> Any:
        return x * self.by


def by_a_helper(x: Any) -> Any:
    return x * FACTOR


def by_two(x: Any) -> Any:
    return x * 2.0


def by_ten(x: Any) -> Any:
    return x * 10.0


HELPER = by_two


class Changing:
    """A function that multiplies by a number kept in some place, and how to put another number there."""

    def __init__(self, function: Callable[..., Any], put: Callable[[float], None]) -> None:
        self.function, self.put = function, put


def of_an_attribute() -> Changing:
    scale = Scale(2.0)
    return Changing(scale.method, lambda number: setattr(scale, "by", number))


def of_an_object() -> Changing:
    scale = Scale(2.0)
    return Changing(scale, lambda number: setattr(scale, "by", number))


def of_an_object_without_a_hash() -> Changing:
    sign = Sign(2.0)
    return Changing(sign, lambda number: setattr(sign, "by", number))


def of_a_closure() -> Changing:
    factor = 2.0

    def put(number: float) -> None:
        nonlocal factor
        factor = number

    return Changing(lambda x, *_: x * factor, put)


def of_a_closed_list() -> Changing:
    factors = [2.0]
    return Changing(lambda x, *_: x * factors[0], lambda number: factors.__setitem__(0, number))


def of_a_global() -> Changing:
    return Changing(lambda x, *_: x * FACTOR, lambda number: globals().update(FACTOR=number))


def of_another_helper() -> Changing:
    """Both read nothing, so that their codes alone differ."""
    return Changing(lambda x, *_: HELPER(x), lambda number: globals().update(HELPER=by_ten))


def of_a_helper() -> Changing:
    return Changing(lambda x, *_: by_a_helper(x), lambda number: globals().update(FACTOR=number))


def of_a_function_inside() -> Changing:
    return Changing(
        lambda x, *_: sum((lambda y: y * FACTOR)(each) for each in (x,)),
        lambda number: globals().update(FACTOR=number),
    )


def of_a_default() -> Changing:
    def function(x: Any, *_: Any, by: float = 2.0) -> Any:
        return x * by

    return Changing(function, lambda number: function.__kwdefaults__.update(by=number))


def of_a_list_by_default() -> Changing:
    factors = [2.0]

    def function(x: Any, *_: Any, by: Any = factors) -> Any:
        return x * by[0]

    return Changing(function, lambda number: factors.__setitem__(0, number))


def of_the_code() -> Changing:
    def function(x: Any, *_: Any) -> Any:
        return x * 2.0

    def put(number: float) -> None:
        made = types.FunctionType(function.__code__, globals())
        assert number == 10.0
        function.__code__ = (lambda x, *_: x * 10.0).__code__
        assert made.__code__ is not function.__code__

    return Changing(function, put)


def of_a_module() -> Changing:
    module = types.ModuleType("settings")
    module.factor = 2.0  # type: ignore[attr-defined]
    return Changing(lambda x, *_: x * module.factor, lambda number: setattr(module, "factor", number))


def of_a_function_s_attribute() -> Changing:
    def function(x: Any, *_: Any) -> Any:
        return x * function.by  # type: ignore[attr-defined]

    function.by = 2.0  # type: ignore[attr-defined]
    return Changing(function, lambda number: setattr(function, "by", number))


def of_a_partial() -> Changing:
    scale = Scale(2.0)
    return Changing(functools.partial(Scale.method, scale), lambda number: setattr(scale, "by", number))


def of_a_tensor() -> Changing:
    factor = torch.tensor(2.0)
    return Changing(lambda x, *_: x * float(factor), lambda number: factor.fill_(number) and None)


def importing(x: Any) -> Any:
    from tilefold.math import exp

    return exp(x)


PLACES = [
    of_an_attribute, of_an_object, of_an_object_without_a_hash, of_a_closure, of_a_closed_list, of_a_global, of_a_helper,
    of_another_helper, of_a_function_inside, of_a_default, of_a_list_by_default, of_the_code, of_a_module,
    of_a_function_s_attribute, of_a_partial, of_a_tensor,
]  # fmt: skip


@pytest.fixture(autouse=True)
def _factor() -> Iterator[None]:
    globals().update(FACTOR=2.0, HELPER=by_two)
    yield
    globals().update(FACTOR=2.0, HELPER=by_two)


@pytest.mark.parametrize("where", ["epilogue", "row"])
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__.removeprefix("of_"))
def test_what_a_function_reads_may_change_between_calls(place: Callable[[], Changing], where: str) -> None:
    changing = place()

    def product() -> Tensor:
        if where == "epilogue":
            result: Tensor = tilefold.matmul(A, B, epilogue=changing.function)
            return result
        rows: Tensor = tilefold.matmul(A, B, row=(monoids.SUM, changing.function))[0]
        return rows

    for _ in range(2):
        assert torch.equal(product(), (A @ B) * 2.0)
    changing.put(10.0)
    for _ in range(2):
        assert torch.equal(product(), (A @ B) * 10.0)


def test_functions_that_are_equal_are_not_the_same() -> None:
    a, b = torch.ones(2, 3, dtype=torch.int8), torch.ones(3, 2, dtype=torch.int8)
    dtypes = [tilefold.matmul(a, b, epilogue=Scale(by)).dtype for by in (1, 1.0, True)]
    assert dtypes == [torch.int32, torch.float32, torch.int32]
    zeros = [
        tilefold.matmul(A[:, :0], B[:0], epilogue=lambda x, z=z: x + z).signbit().all() for z in (0.0, -0.0)
    ]
    assert zeros == [False, False]
    given = [float(1.0 / tilefold.matmul(A, B, epilogue=lambda x, z=z: z)[0, 0]) for z in (0.0, -0.0)]
    assert given == [float("inf"), -float("inf")]


def known(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """The function, and another made by the same code."""
    if function is math.tanh:
        return [function, function]
    return [function, types.FunctionType(function.__code__, globals(), closure=function.__closure__)]


def closed(by: float) -> Callable[..., Any]:
    return lambda x: math.maximum(x * by, 0)


@pytest.mark.parametrize(
    "function",
    [math.tanh, lambda x: 2 * x, lambda x: math.maximum(x, 0), lambda x: by_a_helper(x), closed(3.0), by_a_helper,
     lambda x: math.cast(x, torch.int32), lambda x: tilefold.math.exp(x) * python_math.pi + abs(x),
     lambda x: sum(x * w for w in (1, 2)), lambda x: x * python_math.sqrt(2)],
    ids=["ours", "numbers", "math", "a helper", "a closure", "a plain function", "a dtype", "modules", "a generator",
         "a builtin"],
)  # fmt: skip
def test_what_is_known_to_be_unchanged_is_run_once(
    function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = itertools.count()
    trace = functions.trace
    monkeypatch.setattr(
        functions, "trace", lambda *arguments, **named: (next(runs), trace(*arguments, **named))[1]
    )
    functions._unchanged.pop(function.__code__, None)
    for each in known(function):
        tilefold.matmul(A, B, epilogue=each)
        tilefold.matmul(A, B, epilogue=each)
    assert next(runs) == 1


def test_what_is_read_and_in_which_order() -> None:
    """Functions that read the same objects as different things are not taken for each other."""
    first = lambda x, *_: f(x) if g == 1 else x  # type: ignore[name-defined]  # noqa: E731, F821
    found = []
    for names in ({"f": first, "g": 1}, {"f": 1, "g": first}, {"f": (1,), "g": 1}, {"f": 1, "g": (1,)}):
        function = types.FunctionType(first.__code__, dict(names))
        swapped = {name: function if value is first else value for name, value in names.items()}
        function.__globals__.update(swapped)
        found.append([id(value) for value in unchanged.contents(function) or []])
    assert len({tuple(each) for each in found}) == 4


@pytest.mark.parametrize(
    "function",
    [print, importing, Scale(1), Scale(1).method, functools.partial(by_a_helper), lambda x: id(x), lambda x: x.real,
     lambda x: exec("y = 1"), lambda x: x * NOWHERE, lambda x: [x].append(x), lambda x: Scale(x).by,
     lambda x: torch.get_default_dtype(), lambda x: torch.backends.cuda.matmul.allow_tf32],
    ids=["a builtin", "an import", "an object", "a method", "a partial", "an address", "an attribute", "exec",
         "a global object", "a list",
         "a class", "a setting of torch", "another"],
)  # fmt: skip
def test_what_is_not_known(function: Callable[..., Any]) -> None:
    assert unchanged.contents(function) is None


def test_what_was_not_traced_is_not_kept() -> None:
    def function(x: Any) -> Any:
        return (x, x) if FACTOR == 2.0 else x

    for _ in range(2):
        with pytest.raises(tilefold.errors.ArityError, match="must return one value, got 2 from function"):
            tilefold.matmul(A, B, epilogue=function)
    globals().update(FACTOR=3.0)
    assert torch.equal(tilefold.matmul(A, B, epilogue=function), A @ B)


NOWHERE = Scale(1)  # an object, whatever it is


class Held:
    """Something of a user's that a function may hold on to."""

    by = 2.0


def closures() -> Callable[..., list[Callable[..., Any]]]:
    """Functions that close over an object, a number and another function."""

    def made(held: Held, number: float) -> list[Callable[..., Any]]:
        by_number = lambda x, *_: x * number  # noqa: E731  # what another one closes over
        return [lambda x, *_: x * held.by, by_number, lambda x, *_: by_number(x)]

    return made


@pytest.mark.parametrize("where", ["epilogue", "row"])
def test_nothing_of_the_users_is_kept(where: str) -> None:
    (held, scale), made = (Held(), Scale(3.0)), closures()
    by_object, by_number, helped = made(held, 2.0)
    watched = [weakref.ref(each) for each in (held, scale, by_object, by_number, helped)]
    keys = []
    for function in (by_object, by_number, helped, scale, scale.method):
        given = {"epilogue": function} if where == "epilogue" else {"row": (monoids.SUM, function)}
        tilefold.matmul(A, B, **given)
        tilefold.explain_plan((A, B), tilefold.matmul, **given)
        ending = traced_ending(given.get("epilogue"), 0, given.get("row"))
        keys.append(products._key(A, B, None, (), *ending, None, None, "run_to_run"))
    assert None not in keys
    del held, scale, made, by_object, by_number, helped, function, given
    gc.collect()
    assert [each() for each in watched] == [None] * 5


def totals() -> tuple[tilefold.Monoid, type]:
    """A sum whose result comes in a class of the user's, and that class."""

    class Found(NamedTuple):
        total: Any

    return tilefold.Monoid(lambda a, b: a + b, 0, project=lambda total: Found(total)), Found


def test_a_rows_monoid_is_not_kept() -> None:
    """Nor the class that its results come in."""
    (monoid, kind), (other, _) = totals(), totals()
    apply = lambda x, total: x / total  # noqa: E731  # the same for both
    values, found = tilefold.matmul(A, B, row=(monoid, apply))
    assert type(found) is kind
    torch.testing.assert_close(values, (A @ B) / (A @ B).sum(1, keepdim=True))
    keys = [
        products._key(A, B, None, (), *traced_ending(None, 0, (m, apply)), None, None, "run_to_run")
        for m in (monoid, monoid, other)
    ]
    assert keys[0] == keys[1] != keys[2]
    watched = [weakref.ref(each) for each in (monoid, kind)]
    del monoid, kind, found
    gc.collect()
    assert [each() for each in watched] == [None, None]


def test_two_monoids_of_one_algebra_pack_as_each_says() -> None:
    class One(NamedTuple):
        total: Any

    class Two(NamedTuple):
        total: Any

    made = [
        tilefold.Monoid(lambda a, b: a + b, 0, project=lambda total, kind=kind: kind(total))
        for kind in (One, Two)
    ]
    assert [type(tilefold.matmul(A, B, row=(monoid, None))[1]) for monoid in made] == [One, Two]
    assert [type(tilefold.matmul(A.to("meta"), B.to("meta"), row=(m, None))[1]) for m in made] == [One, Two]


def test_the_code_itself_is_not_kept() -> None:
    scope: dict[str, Any] = {}
    exec("def function(x, inner=None): return x * 2.0 if inner is None else inner(x)", scope)
    function = scope.pop("function")
    again = types.FunctionType(function.__code__, scope, argdefs=(function,))
    for each in (function, again):
        tilefold.matmul(A, B, epilogue=each)
    code = weakref.ref(function.__code__)
    del function, again, each
    gc.collect()
    assert code() is None


def test_a_function_written_in_the_call_is_one_in_every_call() -> None:
    """What a repeated call on a GPU is known by: equal graphs, whoever wrote them."""
    keys = {
        products._key(A, B, None, (), *traced_ending(lambda x: 2.0 * x, 0, None), None, None, "run_to_run")
        for _ in range(3)
    }
    keys.add(products._key(A, B, None, (), *traced_ending(Scale(2.0), 0, None), None, None, "run_to_run"))
    assert len(keys) == 2, "2 * x and x * 2"


def test_a_name_may_be_of_a_subclass() -> None:
    class Name(str):
        __slots__ = ()

    assert torch.equal(tilefold.matmul(A, B, epilogue=Name("relu")), torch.relu(A @ B))


def test_a_function_runs_once_a_call() -> None:
    runs = []

    def counted(x: Any, *_: Any) -> Any:
        runs.append(x)
        return x

    tilefold.matmul(A, B, epilogue=counted)
    assert len(runs) == 1
    tilefold.matmul(A, B, row=(monoids.SUM, counted))
    assert len(runs) == 2
