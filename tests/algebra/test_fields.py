"""What a field without a dtype of its own is carried in, and what comes back."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import tilefold
from tilefold import Monoid, monoids
from tilefold import math as tm
from tilefold.algebra.program import specialize
from tilefold.errors import DtypeError
from xray import running

INF = math.inf
FAR = (1 << 60) + 1
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2)
# numpy, under Triton's interpreter, warns of arrays as scalars.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")
BACKENDS = pytest.mark.parametrize("backend", ["cpu", "reference", "interpret"])


def dtype_name(value: object) -> str | None:
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else None


def larger(a: Any, b: Any) -> tuple[Any, Any]:
    take = (b.m > a.m) | ((b.m == a.m) & (b.i < a.i))
    return tm.where(take, b.m, a.m), tm.where(take, b.i, a.i)


def labelled(**options: Any) -> Monoid:
    given = {"fields": ("m", "i"), "lift": lambda x, k: (x, k), **options}
    return Monoid(larger, None, **given)


def counted(one: Any = 1, **options: Any) -> Monoid:
    return Monoid(
        lambda a, b: (a.sum + b.sum, a.n + b.n),
        (0, 0),
        fields=("sum", "n"),
        lift=lambda x: (x, one),
        **options,
    )


def softmax_pair(one: Any = 1) -> Monoid:
    def combine(a: Any, b: Any) -> tuple[Any, Any]:
        m = tm.maximum(a.m, b.m)
        safe = tm.where(m == -INF, 0.0, m)
        return m, a.l * tm.exp(a.m - safe) + b.l * tm.exp(b.m - safe)

    return Monoid(
        combine, (-INF, 0), fields=("m", "l"), lift=lambda x: (x, one), project=lambda m, l: m + tm.log(l)
    )


def weighted_mean(zero: float) -> Monoid:
    def combine(a: Any, b: Any) -> tuple[Any, Any]:
        n = a.n + b.n
        return (a.m * a.n + b.m * b.n) / tm.maximum(n, 1), n

    return Monoid(combine, (0, zero), fields=("m", "n"), lift=lambda x: (x, 1))


def state(monoid: Monoid, *elements: torch.dtype) -> tuple[torch.dtype, ...]:
    return specialize(monoid.total, elements, all_fields=True).state[: len(monoid.fields)]


# --------------------------------------------------------------------------------------------- what is carried


@BACKENDS
@pytest.mark.parametrize(
    "label", [torch.int64, torch.int32, torch.uint32, torch.int8, torch.bool], ids=dtype_name
)
@pytest.mark.parametrize("value", FLOATS, ids=dtype_name)
def test_a_label_beside_floats_keeps_all_its_bits(
    value: torch.dtype, label: torch.dtype, backend: str
) -> None:
    x = torch.tensor([[1.0, 4.0, -2.0], [2.0, 0.5, 2.0]]).to(value)
    top = 1 if label == torch.bool else FAR if label == torch.int64 else torch.iinfo(label).max
    k = torch.tensor([[0, top, 0], [1, top, 0]], dtype=label)
    with tilefold.backend(backend):
        got = tilefold.reduce((x, k), labelled(), 1)
    assert got.i.dtype == torch.int64
    assert got.i.tolist() == [top, 0]
    assert got.m.float().tolist() == [4.0, 2.0]


@pytest.mark.parametrize("shape", [(3, 700), (2, 9000)], ids=["a-tile", "loops"])
def test_a_label_keeps_its_bits_in_compiled_code(shape: tuple[int, int]) -> None:
    x = torch.randn(shape)
    k = torch.randint(-FAR, FAR, shape)
    monoid = labelled()
    program = specialize(monoid.total, (x.dtype, k.dtype))
    (m, i), _ = running.fold([x, k], program, (1,), 90, ordered=not monoid.commutative)
    at = x.argmax(1, keepdim=True)
    assert torch.equal(i, k.gather(1, at)[:, 0])
    assert torch.equal(m, x.amax(1))


@pytest.mark.parametrize("monoid", [counted(), counted(True)], ids=["one", "true"])
def test_a_counter_beside_a_float_goes_on_beyond_2_to_24(monoid: Monoid) -> None:
    many = (1 << 24) + 3
    assert tilefold.reduce(torch.ones(1).expand(many), monoid).n.item() == many
    chosen = Monoid(lambda a, b: a + b, 0, lift=lambda x: tm.where(x > 0, 1, 0))
    assert tilefold.reduce(torch.ones(1).expand(many), chosen).item() == many


@BACKENDS
def test_a_mean_is_the_inputs_float_whatever_counts(backend: str) -> None:
    mean = counted(project=lambda s, n: s / n)
    with tilefold.backend(backend):
        for dtype in (torch.float16, torch.float32, torch.float64):
            got = tilefold.reduce(torch.tensor([1.0, 2.0, 6.0], dtype=dtype), mean)
            assert (got.dtype, got.item()) == (dtype, 3.0)
        assert tilefold.reduce(torch.tensor([1, 2, 6]), mean).item() == 3.0


def test_positions_are_an_index_without_being_told() -> None:
    given = {"fields": ("m", "i"), "lift": lambda x, i: (x, i), "index": True}
    told = Monoid(larger, (-INF, INF), dtypes=("compute", "index"), **given)
    assert Monoid(larger, (-INF, INF), **given).algebra == told.algebra
    assert Monoid(larger, None, **given).algebra.dtypes == ("compute", "index")
    moved = Monoid(larger, None, **(given | {"lift": lambda x, i: (x, i * 2)}))
    assert moved.algebra.dtypes == ("compute", "compute")
    assert tilefold.reduce(torch.tensor([1.0, 5.0]), moved).i.item() == 2


CARRIED = [
    pytest.param(labelled(), (torch.float32, torch.int64), "float32 int64", id="label"),
    pytest.param(labelled(), (torch.float64, torch.int8), "float64 int64", id="short-label"),
    pytest.param(labelled(), (torch.int64, torch.float32), "int64 float32", id="the-other-way"),
    pytest.param(labelled(), (torch.float32, torch.float64), "float64 float64", id="floats-are-one-width"),
    pytest.param(labelled(lift=lambda x, k: (x, k * 0.5)), (torch.float32, torch.int64), "float32 float32", id="half"),
    pytest.param(labelled(lift=lambda x, k: (x, x * k)), (torch.float16, torch.int64), "float32 float32", id="product"),
    pytest.param(
        labelled(lift=lambda x, k: (x, tm.cast(k, torch.float32))), (torch.float32, torch.int64), "float32 float32",
        id="cast",
    ),
    pytest.param(
        labelled(lift=lambda x, k: (x, tm.cast(k, torch.float64))), (torch.float32, torch.int64), "float32 float64",
        id="cast-to-double",
    ),
    pytest.param(
        labelled(lift=lambda x, k: (x, tm.where(x > 0, k, INF))), (torch.float32, torch.int64), "float32 int64",
        id="an-infinity-beside-a-label",
    ),
    pytest.param(
        labelled(lift=lambda x, k: (x, tm.where(x > 0, 1, INF))), (torch.float32, torch.int64), "float32 float32",
        id="an-infinity-beside-a-literal",
    ),
    pytest.param(counted(), (torch.float32,), "float32 int64", id="counter"),
    pytest.param(weighted_mean(0), (torch.float32,), "float32 int64", id="counter-in-a-mean"),
    pytest.param(weighted_mean(0.0), (torch.float32,), "float32 int64", id="counter-in-a-mean-from-0.0"),
    pytest.param(counted(1.0), (torch.float32,), "float32 float32", id="counter-in-floats"),
    pytest.param(counted(1.0), (torch.float64,), "float64 float64", id="counter-in-doubles"),
    pytest.param(counted(1.0), (torch.int64,), "int64 int64", id="counter-of-integers"),
    pytest.param(softmax_pair(), (torch.float32,), "float32 float32", id="softmax-of-1"),
    pytest.param(softmax_pair(1.0), (torch.float64,), "float64 float64", id="softmax-of-1.0"),
    pytest.param(softmax_pair(), (torch.int64,), "float32 float32", id="softmax-of-integers"),
    pytest.param(monoids.AFFINE, (torch.float32, torch.int64), "float32 float32", id="offsets-of-integers"),
    pytest.param(monoids.AFFINE, (torch.int64, torch.float32), "float32 float32", id="factors-of-integers"),
    pytest.param(monoids.LOGSUMEXP, (torch.int64,), "float32 float32", id="logsumexp-of-integers"),
]  # fmt: skip


@pytest.mark.parametrize(("monoid", "elements", "want"), CARRIED)
def test_a_field_is_carried_in_what_its_lift_and_combine_make(
    monoid: Monoid, elements: tuple[torch.dtype, ...], want: str
) -> None:
    assert state(monoid, *elements) == tuple(getattr(torch, name) for name in want.split())


CATALOGUE = {name: m for name, m in vars(monoids).items() if isinstance(m, Monoid)}
CATALOGUE |= {f"NORM({p})": monoids.NORM(p) for p in (-INF, 0, 1, 2, 3, INF)}
OF_FRACTIONS = ("DESCRIBE", "LOGSUMEXP", "NORM(0)", "NORM(2)", "NORM(3)", "SUM_COMPENSATED", "WELFORD")


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_catalogue_computes_in_its_inputs_float(name: str) -> None:
    monoid = CATALOGUE[name]
    for dtype in (*FLOATS, torch.int8, torch.int64, torch.bool) if not name.startswith("BITWISE") else ():
        whole = torch.float32 if name in OF_FRACTIONS else torch.int64
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        carried = state(monoid, *(dtype,) * monoid.algebra.inputs)
        computing = {d for d, rule in zip(carried, monoid.algebra.dtypes, strict=True) if rule == "compute"}
        assert computing <= {wide if dtype.is_floating_point else whole}


def test_a_float_reaches_a_field_through_others() -> None:
    """Four combines away: each field takes the next one's values."""
    chain = Monoid(
        lambda s, t: (s[0] + t[0] + 0 * s[1], s[1] + t[1] + 0 * s[2], s[2] + t[2] + 0 * s[3], s[3] + t[3]),
        (0, 0, 0, 0),
        fields=("a", "b", "c", "d"),
        lift=lambda x: (1, 1, 1, x),
        check=False,
        commutative=True,
    )
    assert set(state(chain, torch.float32)) == {torch.float32}
    assert set(state(chain, torch.int8)) == {torch.int64}


def test_an_explicit_double_is_not_rounded_on_its_way() -> None:
    """16777217 is no float32; the sum of doubles is, and comes back in the input's dtype."""
    exact = Monoid(
        lambda a, b: a + b, 0, lift=lambda x: tm.cast(x, torch.float64) + 1, project=lambda s: s - 2 * 2.0**24
    )
    got = tilefold.reduce(torch.full((2,), 2.0**24), exact)
    assert (got.dtype, got.item()) == (torch.float32, 2.0)


def test_a_product_of_integers_that_floats_are_made_of_does_not_wrap() -> None:
    twice = torch.full((70,), 2)
    got = tilefold.reduce((twice, torch.ones(70)), monoids.AFFINE)
    assert got.a.item() == 2.0**70
    assert got.b.item() == pytest.approx(2.0**70 - 1)


# -------------------------------------------------------------------------------------------- what comes back


def test_dtype_asks_for_what_is_computed_alone() -> None:
    x, k = torch.tensor([1.0, 3.0], dtype=torch.bfloat16), torch.tensor([FAR, FAR + 1])
    got = tilefold.reduce((x, k), labelled(), dtype=torch.float32)
    assert (got.m.dtype, got.i.dtype, got.i.item()) == (torch.float32, torch.int64, FAR + 1)
    assert tilefold.reduce(x, counted(), dtype=torch.float32).n.dtype == torch.float32


@BACKENDS
def test_an_input_field_has_the_dtype_of_its_own_input(backend: str) -> None:
    x, k = torch.tensor([1.0, 3.0], dtype=torch.bfloat16), torch.tensor([FAR, FAR + 1])
    with tilefold.backend(backend):
        got = tilefold.reduce((x, k), labelled(dtypes="input"))
    assert (got.m.dtype, got.i.dtype, got.i.item()) == (torch.bfloat16, torch.int64, FAR + 1)


# --------------------------------------------------------------------------------------------- what is refused


def missing(a: Any, b: Any) -> tuple[Any, Any]:
    return tm.maximum(a.m, b.m), tm.where(a.i == INF, b.i, a.i)


LOST = [
    pytest.param(labelled(lift=lambda x, k: (x, tm.where(x > 0, k, -1.0))), "int64 in lift", id="chosen-beside-a-literal"),
    pytest.param(labelled(lift=lambda x, k: (x, tm.maximum(x, k))), "int64 in lift", id="chosen-beside-an-element"),
    pytest.param(
        labelled(lift=lambda x, k: (x, tm.where(x > 0, k + 1, 0.5))), "int64 in lift", id="computed-then-chosen"
    ),
    pytest.param(
        Monoid(lambda a, b: (tm.maximum(a.m, b.m), tm.where(a.m > b.m, a.i, b.m)), None, fields=("m", "i"),
               lift=lambda x, k: (x, k), check=False, commutative=False),
        "int64 in lift", id="chosen-beside-another-field",
    ),
    pytest.param(
        Monoid(missing, (-INF, INF), fields=("m", "i"), lift=lambda x, k: (x, k), check=False, commutative=False),
        "int64 in lift", id="an-infinity-that-marks",
    ),
    pytest.param(
        Monoid(lambda a, b: (tm.maximum(a.m, b.m), tm.minimum(a.i, b.i + 1)), (-INF, INF), fields=("m", "i"),
               lift=lambda x, k: (x, k), check=False, commutative=False),
        "int64 in lift", id="an-infinity-that-would-wrap",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("monoid", "lost"), LOST)
def test_bits_are_not_lost_silently(monoid: Monoid, lost: str) -> None:
    x, k = torch.tensor([1.0, 3.0]), torch.tensor([FAR, FAR + 1])
    with pytest.raises(
        DtypeError,
        match=f"whole numbers must fit .*, got torch.{lost} for i, which is torch.float32; give .*dtypes=",
    ):
        tilefold.reduce((x, k), monoid)
    assert tilefold.reduce((x, k.to(torch.int16)), monoid).i.dtype == torch.float32  # 24 bits hold those
    assert tilefold.reduce((x.double(), k.int()), monoid).i.dtype == torch.float64  # 53 bits hold those


@pytest.mark.parametrize(
    ("lift", "identity"),
    [
        pytest.param(lambda x, k: (x, k), (-INF, math.nan), id="begins-at-nan"),
        pytest.param(lambda x, k: (x, k), (-INF, 0.5), id="begins-at-a-fraction"),
    ],
)
def test_a_marker_that_only_floats_have_is_no_place_for_labels(
    lift: Any, identity: tuple[float, float]
) -> None:
    marked = Monoid(larger, identity, fields=("m", "i"), lift=lift, check=False, commutative=True)
    x, k = torch.tensor([1.0, 3.0]), torch.tensor([FAR, FAR + 1])
    with pytest.raises(DtypeError, match=r"got torch.int64 in lift for i, which is torch.float32"):
        tilefold.reduce((x, k), marked)
    assert state(marked, torch.float32, torch.int8) == (torch.float32, torch.float32)


def test_64_bits_without_a_sign_are_declared() -> None:
    x, k = torch.tensor([1.0, 3.0]), torch.tensor([5, 2**63 + 5], dtype=torch.uint64)
    with pytest.raises(
        DtypeError, match=r"got torch.uint64 for i, which is torch.int64; give the monoid dtypes="
    ):
        tilefold.reduce((x, k), labelled())
    for dtypes in (("compute", torch.uint64), "input"):
        assert tilefold.reduce((x, k), labelled(dtypes=dtypes)).i.tolist() == 2**63 + 5


def test_an_input_field_of_several_inputs_holds_all_of_them() -> None:
    x, k = torch.tensor([1.0, 3.0]), torch.tensor([FAR, FAR + 1])
    larger_of_both = Monoid(tm.maximum, -INF, lift=tm.maximum, dtypes="input")
    with pytest.raises(DtypeError, match=r"got torch.int64 in lift for value, which is torch.float32"):
        tilefold.reduce((x, k), larger_of_both)
    assert tilefold.reduce((k.int(), k), larger_of_both).item() == FAR + 1


@pytest.mark.parametrize(
    ("monoid", "want"),
    [
        pytest.param(Monoid(lambda a, b: a + b, 0, lift=lambda x: x * 0.5), 3.0, id="halves"),
        pytest.param(
            Monoid(lambda a, b: a + b, 0, lift=lambda x: tm.where(x > 1, x, 0.0)), 5.0, id="chosen-and-summed"
        ),
        pytest.param(softmax_pair(), math.log(sum(map(math.exp, (1, 2, 3)))), id="logsumexp"),
        pytest.param(counted(project=lambda s, n: s / n), 2.0, id="mean"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8], ids=dtype_name)
def test_integers_compute_as_torch_promotes_them(monoid: Monoid, want: float, dtype: torch.dtype) -> None:
    got = tilefold.reduce(torch.tensor([1, 2, 3], dtype=dtype), monoid)
    assert got.dtype == torch.float32
    assert got.item() == pytest.approx(want)


def test_a_uint64_that_is_chosen_is_no_int64() -> None:
    """A default field of whole numbers is int64, where the greatest of uint64 would be negative; a sum wraps as torch's."""
    large, small = torch.tensor([1, 2**63 + 5, 3], dtype=torch.uint64), torch.ones(3, dtype=torch.int8)
    label = Monoid(
        lambda a, b: (tm.where(b.m > a.m, b.m, a.m), tm.where(b.m > a.m, b.i, a.i)),
        None,
        fields=("m", "i"),
        lift=lambda x, i: (x, i),
    )
    for inputs, monoid in ((large, Monoid(tm.maximum, None)), ((small, large), label)):
        with pytest.raises(DtypeError, match=r"must fit the dtype that a field has .* got torch.uint64"):
            tilefold.reduce(inputs, monoid)
    assert tilefold.reduce(large, Monoid(lambda a, b: a + b, 0)).dtype == torch.int64
    assert tilefold.reduce(large, Monoid(tm.maximum, None, dtypes="input")).tolist() == 2**63 + 5
