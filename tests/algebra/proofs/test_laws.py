"""Laws hold for the whole catalogue and fail for planted faults."""

from __future__ import annotations

import functools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import tilefold
from answers import guarded, textbook
from tilefold import Monoid, math, monoids
from tilefold.algebra.program import specialize
from tilefold.algebra.proofs import laws
from tilefold.backends import reference
from tilefold.errors import DtypeError, LawError

INF = float("inf")
CATALOGUE = {m.name: m for m in vars(monoids).values() if isinstance(m, Monoid)}
CATALOGUE |= {m.name: m for m in (monoids.NORM(p) for p in (0, 1, 2, 3.0, -1.5, INF, -INF))}
ORDERED = {"first", "last", "affine", "matmul2x2"}
PAIR = {"fields": ("m", "l"), "lift": lambda x: (x, 1.0)}
BEST = {"fields": ("v", "i"), "dtypes": ("input", "index"), "index": True, "lift": lambda x, i: (x, i)}


def better(a, b):
    return math.where(b.v > a.v, b.v, a.v), math.where(b.v > a.v, b.i, a.i)


def chan(a, b):
    n, apart = a.n + b.n, b.mean - a.mean
    share = math.where(n == 0, 0.0, b.n / math.where(n == 0, 1.0, n))
    return n, a.mean + apart * share, a.M2 + b.M2 + apart * apart * a.n * share


@pytest.mark.parametrize("name", CATALOGUE)
def test_catalogue_keeps_the_laws_and_its_declared_order(name):
    algebra = CATALOGUE[name].algebra
    laws.verify(algebra, name)
    assert laws.is_commutative(algebra) == (name not in ORDERED) == algebra.commutative


@pytest.mark.parametrize(
    ("combine", "identity", "rule"),
    [
        pytest.param(lambda a, b: a - b, 0, r"combine\(identity, s\) must be s", id="subtraction"),
        pytest.param(lambda a, b: a - b, None, "must be associative", id="subtraction-without-identity"),
        pytest.param(lambda a, b: (a + b) / 2, None, "must be associative", id="mean-of-means"),
        pytest.param(math.maximum, 0, r"combine\(identity, s\) must be s", id="max-from-0"),
        pytest.param(math.maximum, -1e9, r"combine\(identity, s\) must be s", id="max-from-a-large-number"),
        pytest.param(math.maximum, -1e38, r"combine\(identity, s\) must be s", id="max-of-infinities"),
        pytest.param(lambda a, b: a + b + 0.001 * a * a * b, 0, "must be associative", id="small-cubic-term"),
        pytest.param(
            lambda a, b: a * 10 + b, 0, r"combine\(s, identity\) must be s", id="identity-on-one-side"
        ),
    ],
)
def test_planted_faults_are_found(combine, identity, rule):
    with pytest.raises(LawError, match=rule):
        Monoid(combine, identity)


def test_message_shows_three_states_and_both_results():
    with pytest.raises(LawError) as caught:
        Monoid(lambda a, b: (a + b) / 2, None, name="halves")
    message = str(caught.value)
    assert message.startswith("halves: ")
    for part in (
        "combine(combine(a, b), c) = (value=",
        "combine(a, combine(b, c)) = (value=",
        "a = (",
        "b = (",
        "c = (",
    ):
        assert part in message
    assert "is_present" not in message


def test_textbook_pair_names_the_guard():
    with pytest.raises(LawError, match=r"where\(m == -inf, 0, m\).*identity=None"):
        Monoid(textbook, (-INF, 0), **PAIR)


@pytest.mark.parametrize(
    ("combine", "identity"), [(textbook, None), (guarded, (-INF, 0))], ids=["none", "guard"]
)
def test_textbook_pair_mended_is_accepted(combine, identity):
    monoid = Monoid(combine, identity, **PAIR)
    assert monoid.commutative


def test_wrong_guard_is_found():
    def wrong(a, b):
        m = math.maximum(a.m, b.m)
        weights = [math.exp(math.where(s.m == -INF, 0, s.m - m)) for s in (a, b)]
        return m, weights[0] * a.l + weights[1] * b.l

    with pytest.raises(LawError, match="must be associative"):
        Monoid(wrong, (-INF, 0), **PAIR)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: Monoid(lambda a, b: a + b, 0), id="sum"),
        pytest.param(lambda: Monoid(lambda a, b: a * b, 1), id="product"),
        pytest.param(lambda: Monoid(lambda a, b: (a + b) % 7, 0, lift=lambda x: x % 7), id="modulus"),
        pytest.param(lambda: Monoid(lambda a, b: math.sqrt(a * a + b * b), 0, lift=abs), id="hypotenuse"),
        pytest.param(
            lambda: Monoid(chan, (0, 0, 0), fields=("n", "mean", "M2"), lift=lambda x: (1.0, x * 1.0, 0.0)),
            id="chan",
        ),
        pytest.param(lambda: Monoid(lambda a, b: a | b, 0), id="or-of-integers"),
        pytest.param(
            lambda: Monoid(lambda a, b: (a + b) % 97, 0, lift=lambda x: x % 97, dtypes=torch.int64),
            id="modulus-of-whole-numbers",  # of which no float without an end is one
        ),
        pytest.param(lambda: Monoid(lambda a, b: a + b, 0, dtypes=None), id="no-dtypes"),
        pytest.param(
            lambda: Monoid(
                lambda p, q: (p.re * q.re - p.im * q.im, p.re * q.im + p.im * q.re),
                (1, 0),
                fields=("re", "im"),
            ),
            id="complex-product",
        ),
    ],
)
def test_users_monoids_are_accepted_and_found_commutative(make):
    assert make().commutative


@pytest.mark.parametrize(
    ("combine", "lift"),
    [
        pytest.param(
            lambda a, b: (a[0] + b[0], math.maximum(a[1], a[0] + b[1])),
            lambda x: (x, math.maximum(x, 0)),
            id="largest-prefix-sum",
        ),
        pytest.param(
            lambda a, b: (
                a[0] + b[0],
                math.maximum(a[1], a[0] + b[1]),
                math.maximum(b[2], b[0] + a[2]),
                math.maximum(math.maximum(a[3], b[3]), a[2] + b[1]),
            ),
            lambda x: (x, *(math.maximum(x, 0),) * 3),
            id="largest-run",
        ),
    ],
)
def test_whole_numbers_that_fit_are_accepted(combine, lift):
    """Sums of the largest samples stay within int64: wrapped ones would compare wrongly."""
    fields = [f"f{i}" for i in range(len(lift(1)))]
    monoid = Monoid(combine, (0,) * len(fields), lift=lift, fields=fields)
    assert not monoid.commutative
    x = torch.tensor([3, -5, 9, -1, 4, -20, 5])
    assert tilefold.reduce(x, monoid)[-1] == {2: 10, 4: 12}[len(fields)]


def test_ties_reveal_that_the_order_matters():
    assert not Monoid(better, None, **BEST).commutative
    with pytest.raises(LawError, match="commutative=True must hold"):
        Monoid(better, None, commutative=True, **BEST)


def test_composition_is_not_commutative():
    assert not Monoid(lambda f, g: (g.a * f.a, g.a * f.b + g.b), (1, 0), fields=("a", "b")).commutative


@pytest.mark.parametrize(
    ("make", "what"),
    [
        pytest.param(
            lambda: Monoid(lambda a, b: a + b, 0, absorb=lambda s, x: s + math.block_max(x)),
            "instead of",
            id="max-for-sum",
        ),
        pytest.param(
            lambda: Monoid(guarded, (-INF, 0), absorb=_unguarded_absorb, **PAIR),
            "-inf",
            id="all-elements-minus-infinity",
        ),
    ],
)
def test_absorb_must_mean_what_combine_means(make, what):
    with pytest.raises(LawError, match=f"absorb must equal combining the lifted elements one by one.*{what}"):
        make()


def test_a_block_may_lose_an_infinity_that_combining_keeps():
    """A sum about the block's largest element makes NaN of an infinite one: of finite elements it is the sum."""

    def about(state, x):
        largest = math.block_max(x)
        some = math.where(largest == -INF, 0.0, largest)
        return state + math.block_count(x) * some + math.block_sum(x - some)

    assert Monoid(lambda a, b: a + b, 0, absorb=about).algebra.absorb is not None


def _unguarded_absorb(state, x):
    m = math.maximum(state.m, math.block_max(x))
    return m, state.l * math.exp(state.m - m) + math.block_sum(math.exp(x - m))


def test_folding_no_dtype_is_an_error():
    with pytest.raises(DtypeError, match="must fold floats, integers or bool"):
        Monoid(lambda a, b: (a & b) * 1.5, 0, lift=lambda x: x * 0.5)


def test_check_can_be_skipped():
    monoid = Monoid(lambda a, b: a - b, 0, check=False, commutative=False)
    assert not monoid.commutative


def test_torchs_generator_is_left_alone():
    before = torch.get_rng_state()
    Monoid(lambda a, b: a + b, 0)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("combine", "identity"), [(textbook, None), (guarded, (-INF, 0))], ids=["none", "guard"]
)
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 65)], ids=str)
def test_mended_textbook_pair_folds_to_the_log_sum_exp(combine, identity, shape):
    x = torch.randn(shape) * 30
    monoid = Monoid(combine, identity, project=lambda m, l: m + math.log(l), **PAIR)
    program = specialize(monoid.total, (x.dtype,))
    got = monoid.pack(reference.fold([x], program, (x.ndim - 1,)))
    torch.testing.assert_close(got, x.logsumexp(-1), rtol=1e-6, atol=1e-6)


# ------------------------------------------------------------------------------ what decides that order matters


@pytest.mark.parametrize(
    ("make", "commutes"),
    [
        pytest.param(lambda: Monoid(math.maximum, -INF), True, id="maximum"),
        pytest.param(lambda: Monoid(lambda a, b: math.where(b > a, b, a), None), True, id="larger-of-two"),
        pytest.param(lambda: Monoid(lambda a, b: a, None), False, id="first"),
        pytest.param(lambda: Monoid(lambda a, b: b, None), False, id="last"),
        pytest.param(lambda: Monoid(better, None, **BEST), False, id="first-of-equals"),
        pytest.param(
            lambda: Monoid(
                lambda a, b: (math.where(b.v >= a.v, b.v, a.v), math.where(b.v >= a.v, b.i, a.i)),
                None,
                **BEST,
            ),
            False,
            id="last-of-equals",
        ),
        pytest.param(
            lambda: Monoid(
                lambda a, b: (
                    math.where(b.v > a.v, b.v, a.v),
                    math.where((b.v > a.v) | ((b.v == a.v) & (b.i < a.i)), b.i, a.i),
                ),
                (-INF, INF),
                **BEST,
            ),
            True,
            id="lowest-of-equals",
        ),
        pytest.param(
            lambda: Monoid(lambda a, b: math.where(a != 0, a, b), 0), False, id="first-that-is-not-zero"
        ),
        pytest.param(
            lambda: Monoid(lambda a, b: (a.a * b.a, a.b * b.a + b.b), (1, 0), fields=("a", "b")),
            False,
            id="affine",
        ),
        pytest.param(
            lambda: Monoid(lambda a, b: (a.a * b.a, a.b + b.b), (1, 0), fields=("a", "b")),
            True,
            id="two-at-once",
        ),
        pytest.param(lambda: Monoid(lambda a, b: a * 31 + b - a * 30, 0), True, id="a-sum-in-disguise"),
    ],
)
def test_ties_and_swaps_tell_whether_order_matters(make, commutes):
    assert make().commutative == commutes


@pytest.mark.parametrize(
    "combine",
    [lambda a, b: math.where(b > a, b, a), lambda a, b: math.where(math.isnan(a), b, a), math.maximum],
    ids=["comparison", "first-that-is-not-nan", "maximum"],
)
def test_nan_is_no_sample(combine):
    """What a fold does with NaN is its author's choice: a bare comparison drops or keeps it by the order of elements."""
    Monoid(combine, None)


def test_a_rule_for_infinities_is_checked():
    """Infinities are samples: a combine that drops only them is found."""
    with pytest.raises(LawError, match=r"combine\(identity, s\) must be s|must be associative"):
        Monoid(lambda a, b: math.where(math.isinf(b), a, a + b), 0)


def test_an_identity_no_integer_holds_is_told_and_the_infinity_that_means_the_limit_works():
    """A least number of 64 bits is none of 8: folding int8 says so instead of wrapping it to 0."""
    least = Monoid(lambda a, b: math.maximum(a, b) | 0, -(2**63), dtypes="input", name="least")
    with pytest.raises(DtypeError, match=r"must fit its field, got -9223372036854775808 for torch.int8"):
        specialize(least.total, (torch.int8,))
    x = torch.tensor([-4, -5], dtype=torch.int8)
    limit = Monoid(math.maximum, -INF, dtypes="input")
    assert reference.fold([x], specialize(limit.total, (x.dtype,)), (0,))[0] == -4


def test_a_device_or_mode_of_the_caller_changes_no_check() -> None:
    with torch.device("meta"):
        Monoid(lambda a, b: a + b, 0)
    with FakeTensorMode():
        Monoid(lambda a, b: math.maximum(a, b), -INF)
    assert Monoid(lambda a, b: a + b, 0).commutative


def test_an_identity_that_is_nan_is_none() -> None:
    with pytest.raises(LawError, match="identity"):
        Monoid(lambda a, b: a + b, float("nan"))


# ---------------------------------------------------------------------------------- infinities that integers lack


def min_plus(p, q):
    pairs = (
        ((p.a, q.a), (p.b, q.c)),
        ((p.a, q.b), (p.b, q.d)),
        ((p.c, q.a), (p.d, q.c)),
        ((p.c, q.b), (p.d, q.d)),
    )
    return tuple(math.minimum(left[0] + left[1], right[0] + right[1]) for left, right in pairs)


def max_plus(f, g):
    return f.a + g.a, math.maximum(f.b + g.a, g.b)


def stretches(a, b):
    return (
        a.total + b.total,
        math.maximum(a.head, a.total + b.head),
        math.maximum(b.tail, b.total + a.tail),
        math.maximum(math.maximum(a.best, b.best), a.tail + b.head),
    )


STRETCH = {
    "fields": ("total", "head", "tail", "best"),
    "lift": lambda x: (x, x, x, x),
    "project": lambda total, head, tail, best: best,
}
FLOATS_ONLY = {
    "min-plus-product": lambda **o: Monoid(min_plus, (0, INF, INF, 0), fields=("a", "b", "c", "d"), **o),
    "max-plus-map": lambda **o: Monoid(max_plus, (0, -INF), fields=("a", "b"), **o),
    "maximum-subarray": lambda **o: Monoid(stretches, (0, -INF, -INF, -INF), **STRETCH, **o),
    "lifted-infinity": lambda **o: Monoid(
        max_plus, None, fields=("a", "b"), lift=lambda x: (x, -INF), project=lambda a, b: a, **o
    ),
}


@pytest.mark.parametrize("name", FLOATS_ONLY)
def test_laws_that_an_integers_limit_breaks_leave_the_fold_of_floats(name):
    monoid = FLOATS_ONLY[name]()
    elements = monoid.algebra.inputs
    for dtype in (torch.int64, torch.uint8, torch.bool):
        with pytest.raises(
            DtypeError, match=r"must fold floats, got torch.\w+; give .*dtypes=torch.float32, or conv"
        ):
            specialize(monoid.total, (dtype,) * elements)
    floats = [torch.tensor([1.0, -5.0, 3.0, 4.0, -9.0, 2.0])] * elements
    wide = FLOATS_ONLY[name](dtypes=torch.float32)
    for want, got in zip(
        reference.fold(floats, specialize(monoid.total, (torch.float32,) * elements), (0,)),
        reference.fold([x.int() for x in floats], specialize(wide.total, (torch.int32,) * elements), (0,)),
        strict=True,
    ):
        assert torch.equal(want, got)


def about_the_larger(a, b):
    """A mean as a sum about a pivot: that of the side with more elements, so that groupings differ in the pivot."""
    pivot = math.where(a.count >= b.count, a.pivot, b.pivot)
    left, right = a.pivot - pivot, b.pivot - pivot
    return a.count + b.count, pivot, (a.sum + a.count * left) + (b.sum + b.count * right)


def test_forms_of_one_state_keep_the_laws():
    """A pivot may be any: what is projected agrees, also after more elements. A sum that is lost does not."""
    given = {"fields": ("count", "pivot", "sum"), "lift": lambda x: (1.0, x, 0.0)}
    mean = {"project": lambda count, pivot, total: pivot + total / math.where(count == 0, 1.0, count)}
    made = Monoid(about_the_larger, (0, 0, 0), **given, **mean)
    x = torch.tensor([1.0, 5.0, -3.0, 8.0, 0.5])
    torch.testing.assert_close(reference.fold([x], specialize(made.total, (x.dtype,)), (0,))[0], x.mean())
    with pytest.raises(LawError, match="associative"):
        Monoid(about_the_larger, (0, 0, 0), **given)  # each field is a result then
    with pytest.raises(LawError, match="associative"):
        Monoid(lambda a, b: (*about_the_larger(a, b)[:2], a.sum + b.sum), (0, 0, 0), **given, **mean)


def test_the_maximum_subarray_is_found():
    best = FLOATS_ONLY["maximum-subarray"]()
    x = torch.tensor([[1.0, -5.0, 3.0, 4.0, -9.0, 2.0], [-4.0, -3.0, -2.0, -5.0, -6.0, -7.0]])
    program = specialize(best.total, (x.dtype,))
    assert reference.fold([x], program, (1,))[0].tolist() == [7.0, -2.0]


@pytest.mark.parametrize(
    ("combine", "identity"),
    [
        pytest.param(lambda a, b: math.maximum(a, b) + 1, -INF, id="broken-on-floats"),
        pytest.param(lambda a, b: (a & b) + 1, -INF, id="without-a-fold-of-floats"),
        pytest.param(lambda a, b: a + b - (a // 7) * 7, 0, id="without-an-infinity"),
    ],
)
def test_an_infinity_excuses_nothing_but_its_wrapping(combine, identity):
    with pytest.raises(
        LawError, match=r"combine\((identity, s|s, identity|identity, identity)\) must be|associative"
    ):
        Monoid(combine, identity)


@pytest.mark.parametrize(
    "lift", [lambda x: (x, x), lambda x: (math.exp(x) - 3, x)], ids=["alone", "beside-floats"]
)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_a_limit_of_whole_numbers_that_is_computed_with_is_refused_for_floats_too(dtype, lift):
    """A limit below another, as of an absent element, is a large positive number."""

    def best_prefix(a, b):
        return a.sum + b.sum, math.maximum(a.best, a.sum + b.best)

    given = {"fields": ("sum", "best"), "lift": lift}
    Monoid(best_prefix, (0, -INF), **given)
    with pytest.raises(
        LawError, match=r"declare the dtype torch\.float64 of best: the infinity of a whole number"
    ):
        Monoid(best_prefix, (0, -INF), dtypes=dtype, **given)
    Monoid(best_prefix, (0, -INF), dtypes=(dtype, torch.float64), **given)


def test_positions_below_an_infinity_name_floats():
    """As floats they would be rounded, as whole numbers the infinity wraps: a declared float does both."""
    given = {"lift": lambda x, i: (-i, i), "index": True}

    def best_prefix(a, b):
        return a[0] + b[0], math.maximum(a[1], a[0] + b[1])

    with pytest.raises(LawError, match=r"declare the dtype torch\.float64"):
        Monoid(best_prefix, (0, -INF), **given)
    Monoid(best_prefix, (0, -INF), dtypes=("compute", torch.float64), **given)


# ------------------------------------------------------------------------------------------ many lifts and tolerances


@pytest.mark.parametrize("bound", [8, 77, 1000, 123_456, 2**33])
@pytest.mark.parametrize("side", ["a", "b", "a + b"])
def test_a_sum_that_is_reset_is_refused_however_many_lifts_it_takes(bound, side):
    def combine(a, b):
        return math.where({"a": a, "b": b, "a + b": a + b}[side] > bound, 0, a + b)

    with pytest.raises(LawError):
        Monoid(combine, 0, lift=lambda x: math.where(x > 0, 1, 0))


@pytest.mark.parametrize("c", [1e-12, 3.7e-9, 1e-3, 0.4, 17, 1000])
@pytest.mark.parametrize("form", ["sum", "difference", "near", "square", "ratio"])
def test_a_tolerance_is_refused(c, form):
    def combine(a, b):
        if form == "near":
            return math.where(abs(a - b) < c, a, math.maximum(a, b))
        take = {
            "sum": b > a + c,
            "difference": b - a > c,
            "square": (b - a) * (b - a) > c * c,
            "ratio": b > a * (1 + c),
        }
        return math.where(take[form], b, a)

    with pytest.raises(LawError, match="must be associative"):
        Monoid(combine, None, domain=(0.1, 1e4) if form == "ratio" else "any")


def test_rounding_breaks_no_law():
    """Close to 1 the groupings differ by 2e-12, and in many lifts by all digits: without rounding they are equal."""
    for domain in ((-0.99, 0.99), (-1, 1), (-0.9999999, 0.9999999)):
        assert Monoid(lambda a, b: (a + b) / (1 + a * b), 0, domain=domain).commutative
    with pytest.raises(LawError, match="must be associative"):
        Monoid(lambda a, b: (a + b) / (1 + a * b) + 1e-9 * a * b * (a - b), 0, domain=(-0.99, 0.99))


def rolling(n, base=31):
    return lambda a, b: ((a.h * b.p + b.h) % n, a.p * b.p % n), {
        "fields": ("h", "p"),
        "lift": lambda x: (x % n, base),
    }


def test_laws_that_hold_for_whole_numbers_say_so():
    """Of a fraction, a base modulo a number is another base."""
    combine, options = rolling(1_000_000_007)
    with pytest.raises(
        LawError, match=r"declare dtypes=torch.int64 if it is for whole numbers: the laws hold for those"
    ):
        Monoid(combine, (0, 1), **options)
    hashed = Monoid(combine, (0, 1), dtypes=torch.int64, **options)
    x = torch.randint(1000, (300,))
    want = functools.reduce(lambda h, v: (h * 31 + v) % 1_000_000_007, x.tolist(), 0)
    assert tilefold.reduce(x, hashed).h.item() == want


@pytest.mark.parametrize(
    ("combine", "identity", "options"),
    [
        pytest.param(lambda a, b: (a + b) / 2, None, {}, id="arithmetic"),
        pytest.param(lambda a, b: (a + b) * 0.5, 0, {}, id="with-an-identity"),
        pytest.param(lambda a, b: math.sqrt(a * b), None, {"domain": "positive"}, id="geometric"),
        pytest.param(lambda a, b: 2 / (1 / a + 1 / b), None, {"domain": "positive"}, id="harmonic"),
        pytest.param(lambda a, b: math.log((math.exp(a) + math.exp(b)) / 2), None, {}, id="exponential"),
        pytest.param(
            lambda a, b: ((a.x + b.x) / 2, (a.y + b.y) / 2),
            None,
            {"fields": ("x", "y")},
            id="middle-of-points",
        ),
    ],
)
def test_a_mean_is_told_to_carry_its_count(combine, identity, options):
    with pytest.raises(
        LawError, match=r"a mean of two sides is no monoid.*carry the sum and the count"
    ) as caught:
        Monoid(combine, identity, **options)
    said = str(caught.value).partition("project: ")[2].partition("; of log(x)")[0]
    assert said.startswith("fields=")
    arguments = eval(f"dict({said})")
    mean = Monoid(arguments.pop("combine"), arguments.pop("identity"), **arguments)
    assert tilefold.reduce(torch.tensor([1.0, 2.0, 6.0]), mean).item() == 3.0


def test_a_fading_mean_is_told_of_affine_maps():
    with pytest.raises(LawError, match=r"what a later element leaves of earlier ones.*AFFINE"):
        Monoid(lambda a, b: 0.9 * a + 0.1 * b, None)
    with pytest.raises(LawError, match="carry in the state what a later combine needs"):
        Monoid(lambda a, b: a - b, None)


def hashed(p, lift, **options):
    return Monoid(
        lambda a, b: ((a.hash * b.power + b.hash) % p, a.power * b.power % p),
        (0, 1),
        lift=lift,
        fields=("hash", "power"),
        dtypes=torch.int64,
        **options,
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda p: hashed(p, lambda x: (x, 31)),
        lambda p: Monoid(lambda a, b: (a + b) % p, 0, dtypes=torch.int64),
        lambda p: Monoid(lambda a, b: a * b % p, 1, dtypes=torch.int64),
        lambda p: Monoid(lambda a, b: (b + a) % p, 0),
    ],
    ids=["rolling hash", "sum", "product", "floats"],
)
def test_a_remainder_is_told_to_be_lifted(make):
    with pytest.raises(LawError, match=r"must be s, got .*; take the remainder in lift too, .*x % P"):
        make(1_000_003)


def test_a_hash_is_told_what_it_lacks():
    """As it is told to be, a rolling hash is a monoid."""
    assert not hashed(1_000_003, lambda x: (x % 1_000_003, 31)).commutative
    with pytest.raises(LawError, match=r"take P below 2\^31 in x % P: products .* wrap"):
        hashed(2**61 - 1, lambda x: (x % (2**61 - 1), 31))
    with pytest.raises(LawError, match=r"a rolling hash the power of its base"):
        Monoid(lambda a, b: (a * 31 + b) % 97, None, lift=lambda x: x % 97, dtypes=torch.int64)
    with pytest.raises(LawError, match=r"give the state that changes nothing"):
        Monoid(lambda a, b: (a * 31 + b) % 97, 0, lift=lambda x: x % 97, dtypes=torch.int64)


# ------------------------------------------------------------------------------------------------ what is kept


def test_an_equal_monoid_is_not_checked_again(monkeypatch):
    def make(name):
        return Monoid(lambda a, b: math.maximum(a, b + 0.12345), None, name=name, check=True)

    with pytest.raises(LawError, match=r"^first: "):
        make("first")
    Monoid(lambda a, b: math.maximum(a, b) + 0.0, None)
    monkeypatch.setattr(laws, "_check", None)
    assert Monoid(lambda a, b: math.maximum(a, b) + 0.0, None, name="another").commutative
    with pytest.raises(LawError, match=r"^second: "):
        make("second")


def test_a_monoid_that_a_compiled_function_makes_is_not_traced():
    counters = torch._dynamo.utils.counters
    torch._dynamo.reset()
    counters.clear()

    @torch.compile(backend="eager")
    def function(x):
        made = Monoid(lambda a, b: math.maximum(a, b * 1.0), None)
        return tilefold.reduce(x + 1, made) * 2

    assert function(torch.ones(5)).item() == 4.0
    assert counters["frames"]["total"] <= 4


@pytest.mark.parametrize(
    "turns",
    [
        lambda a, b: ((a >> 33) & (b >> 50) & 1) != 0,
        lambda a, b: (a >> 20) == (b >> 20) + 77,
        lambda a, b: ((a * 2654435761) >> 40) & 255 == 90,
    ],
    ids=["two bits", "high parts", "a hash"],
)
def test_a_combine_that_turns_at_high_bits_is_refused(turns):
    with pytest.raises(LawError, match="must be associative"):
        Monoid(
            lambda a, b: math.where(turns(a, b), math.minimum(a, b), math.maximum(a, b)),
            None,
            dtypes=torch.int64,
        )


def test_what_infinities_alone_break_is_no_matter_of_whole_numbers():
    """The two largest with their positions: dtypes=torch.int64 would cut the fractions of floats."""

    def two(a, b):
        first = a.v >= b.v
        one, i = (math.where(first, x, y) for x, y in ((a.v, b.v), (a.i, b.i)))
        v, k, w, j = (math.where(first, x, y) for x, y in ((a.w, a.v), (a.j, a.i), (b.v, b.w), (b.i, b.j)))
        return one, i, math.where(v >= w, v, w), math.where(v >= w, k, j)

    with pytest.raises(LawError, match="declare domain='finite' if no input"):
        Monoid(
            two, (-INF, -1, -INF, -1), fields=("v", "i", "w", "j"),
            lift=lambda x, i: (x, i, -INF, -1), index=True,
        )  # fmt: skip
