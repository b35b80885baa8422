"""Drawn monoids: right ones, with and without an order, and wrong ones; each kind with parameters drawn at random.

A right one obeys the laws in arithmetic, whatever is drawn. A wrong one breaks one, for elements of its domain, whatever is
drawn. What is drawn prints as the options of `Monoid`, its functions by the kind's name and parameters.
"""

from __future__ import annotations

import math as m
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from tilefold import Monoid, math

INF = float("inf")
where, maximum, minimum = math.where, math.maximum, math.minimum


@dataclass(frozen=True)
class Drawn:
    """A kind, its parameters, and the arguments of `Monoid` that they make."""

    kind: str
    parameters: tuple[Any, ...]
    combine: Callable[..., Any]
    identity: Any
    options: dict[str, Any]

    def monoid(self, **more: Any) -> Monoid:
        return Monoid(self.combine, self.identity, name="drawn", **{**self.options, **more})

    def __repr__(self) -> str:
        shown = {k: v for k, v in self.options.items() if not callable(v)}
        return f"{self.kind}{self.parameters} {shown}"


Kind = Callable[[Random], tuple[tuple[Any, ...], Callable[..., Any], Any, dict[str, Any]]]


def draw(kinds: dict[str, Kind], seed: int, number: int) -> Drawn:
    """The `number`th monoid of a seed: kinds take turns."""
    random = Random(seed * 1_000_003 + number)
    name = list(kinds)[number % len(kinds)]
    return Drawn(name, *kinds[name](random))


def size(random: Random, least: float = 1e-12, most: float = 1e3) -> float:
    """A number of any size between these, with some digits or all."""
    value = 10 ** random.uniform(m.log10(least), m.log10(most))
    return float(f"{value:.{random.choice((0, 1, 2, 15))}e}")


def whole(random: Random, least: int = 1, most: int = 10**6) -> int:
    return int(10 ** random.uniform(m.log10(least), m.log10(most + 1)))


def either(random: Random, *options: Any) -> Any:
    return random.choice(options)


def bound(random: Random) -> float | int:
    """Where something turns: whole or not, from 3 to a million."""
    return either(random, whole(random, 3), size(random, 3, 1e6))


def some_dtypes(random: Random) -> dict[str, Any]:
    return either(
        random, {}, {}, {"dtypes": torch.int64}, {"dtypes": torch.float64}, {"dtypes": torch.float32}
    )


def counting(random: Random) -> dict[str, Any]:
    """Lifts that are never negative, of few values or of many."""
    return either(
        random,
        {"lift": lambda x: where(x > 0, 1, 0)},
        {"lift": lambda x: where(x == 1, 1, 0), **some_dtypes(random)},
        {"domain": (0, 1), "dtypes": torch.int64},
        {"lift": abs},
        {"lift": lambda x: x * x},
        {"domain": "nonnegative"},
        {"lift": lambda x: math.floor(abs(x)), **some_dtypes(random)},
    )


# ---------------------------------------------------------------------------------------------- wrong ones


def reset_above(random: Random) -> Any:
    t, r = bound(random), either(random, 0, 0, 1, -1)
    return (t, r), lambda a, b: where(a + b > t, r, a + b), 0, counting(random)


def reset_of_a_side(random: Random) -> Any:
    t, side = bound(random), random.randrange(2)
    return (t, side), lambda a, b: where((b if side else a) > t, 0, a + b), 0, counting(random)


def reset_at_a_value(random: Random) -> Any:
    v, of = whole(random, 5, 10**7), random.randrange(4)

    def combine(a: Any, b: Any) -> Any:
        at = (a, b, a + b, b - 1)[of]
        return where(at == v, 0, a + b)

    return (
        (v, of),
        combine,
        either(random, 0, None),
        either(random, {}, {"dtypes": torch.int64}, counting(random)),
    )


def saturates_on_a_side(random: Random) -> Any:
    t, side = bound(random), random.randrange(2)

    def combine(a: Any, b: Any) -> Any:
        return where(a > t, a, a + b) if side else minimum(a, t) + b

    return (t, side), combine, None, counting(random)


def clips_a_signed_sum(random: Random) -> Any:
    t = bound(random)
    low = either(random, -INF, -t, -2 * t)
    clipped = lambda x: maximum(minimum(x, t), low)  # noqa: E731  # used twice
    return (t, low), lambda a, b: clipped(a + b), 0, {"lift": clipped, **some_dtypes(random)}


def switches_rule(random: Random) -> Any:
    t, of = bound(random), random.randrange(3)

    def combine(a: Any, b: Any) -> Any:
        below = (a + b, a, b)[of] < t
        return where(below, a + b, maximum(a, b))

    return (t, of), combine, None, counting(random)


def tolerates(random: Random) -> Any:
    c, of, side = size(random), random.randrange(4), random.randrange(2)

    def combine(a: Any, b: Any) -> Any:
        a, b = (b, a) if side else (a, b)
        if of == 3:
            return where((b - a) * (b - a) < c * c, a, maximum(a, b))
        return where((b > a + c, b - a > c, abs(a - b) < c)[of], *((b, a) if of < 2 else (a, maximum(a, b))))

    return (c, of, side), combine, None, either(random, {}, {"domain": "finite"}, {"domain": (0, 5000)})


def tolerates_in_proportion(random: Random) -> Any:
    c, of = size(random, 1e-9, 0.5), random.randrange(3)

    def combine(a: Any, b: Any) -> Any:
        take = (b > a * (1 + c), b * (1 - c) > a, b - a > c * a)[of]
        return where(take, b, a)

    return (c, of), combine, None, either(random, {"domain": "positive"}, {"domain": (0.1, 1e4)})


def modulus(random: Random) -> Any:
    n, of = whole(random, 3, 10**6), random.randrange(3)

    def combine(a: Any, b: Any) -> Any:
        s = a + b
        return (s % n, where(s >= n, s - n - 1, s), where(s > n, s - n - 1, s) + 0 * a)[of]

    lift = {0: lambda x: abs(x) % (n + 1), 1: lambda x: x % n, 2: lambda x: x % (n + 2)}[of]
    return (n, of), combine, 0, {"lift": lift, **either(random, {}, {"dtypes": torch.int64})}


def rounds(random: Random) -> Any:
    k, of = either(random, 2, 3, 10, 100, 0.5, 0.1), random.randrange(3)

    def combine(a: Any, b: Any) -> Any:
        s = a + b
        return (math.floor(s * k + 0.5) / k, s - s % (1 / k), math.ceil(s * k) / k)[of]

    return (k, of), combine, None, {"lift": lambda x: x / (3.7 * k)}


def rounds_whole(random: Random) -> Any:
    k, of = random.randrange(2, 9), random.randrange(4)

    def combine(a: Any, b: Any) -> Any:
        return ((a + b) // k, (a + b) // k * k + b % k, (a >> 1) + b, (a * k + b) // 2)[of]

    return (k, of), combine, None, {"dtypes": torch.int64}


def ties(random: Random) -> Any:
    k, of = random.randrange(2, 9), random.randrange(3)

    def combine(a: Any, b: Any) -> Any:
        tied = (a.n * k + b.n, a.n - b.n, where(a.n > b.n, a.n - 1, b.n))[of]
        return maximum(a.v, b.v), where(a.v == b.v, tied, where(a.v > b.v, a.n, b.n))

    return (k, of), combine, None, {"fields": ("v", "n"), "lift": lambda x, y: (x, math.floor(y))}


def means(random: Random) -> Any:
    w, of = random.uniform(0.05, 0.95), random.randrange(4)

    def combine(a: Any, b: Any) -> Any:
        return ((a + b) / 2, w * a + (1 - w) * b, math.sqrt(a * b), 2 * a * b / (a + b))[of]

    return (w, of), combine, None, {"domain": "positive"} if of > 1 else {}


def nearly(random: Random) -> Any:
    e, of = size(random, 1e-9, 1e-2), random.randrange(3)

    def combine(a: Any, b: Any) -> Any:
        return (a + b + e * a * a * b, a + b * (1 + e), maximum(a, b) + e * (a - b))[of]

    return (e, of), combine, None, some_dtypes(random) if e > 1 else {}


def restarts_a_window(random: Random) -> Any:
    n, of = whole(random, 3, 10**6), random.randrange(2)

    def combine(a: Any, b: Any) -> Any:
        full = a.n + b.n > n if of else b.n == n
        return where(full, b.n, a.n + b.n), where(full, b.s, a.s + b.s)

    return (n, of), combine, None, {"fields": ("n", "s"), "lift": lambda x: (1, x)}


def subtracts(random: Random) -> Any:
    k, of = random.randrange(2, 9), random.randrange(5)

    def combine(a: Any, b: Any) -> Any:
        return (a - b, abs(a - b), a * k + b, where(a * b < 0, 0, a + b), a * a + b)[of]

    return (k, of), combine, None, some_dtypes(random)


def mixes_bits(random: Random) -> Any:
    k, of = random.randrange(1, 64), random.randrange(3)

    def combine(a: Any, b: Any) -> Any:
        return (a ^ (b << 1), where((b & k) != 0, a, a ^ b), (a + b) ^ k)[of]

    return (k, of), combine, None, {"dtypes": torch.int64}


def turns_at_bits(random: Random) -> Any:
    i, j = random.randrange(50), random.randrange(50)
    return (
        (i, j),
        lambda a, b: where((a >> i) & (b >> j) & 1 != 0, minimum(a, b), maximum(a, b)),
        None,
        {"dtypes": torch.int64},
    )


def forgets_when_rare(random: Random) -> Any:
    v, t = whole(random, 20, 10**5), whole(random, 5, 100)
    return (v, t), lambda a, b: where((b == v) & (a > t), a, a + b), 0, counting(random)


def wrong_guard(random: Random) -> Any:
    k = either(random, size(random, 1e-3, 0.9), size(random, 1.1, 10))

    def combine(a: Any, b: Any) -> Any:
        top = maximum(a.m, b.m)
        return top, a.l * math.exp((a.m - top) * k) + b.l * math.exp(b.m - top)

    return (k,), combine, None, {"fields": ("m", "l"), "lift": lambda x: (x * 1.0, 1.0)}


def capped_count(random: Random) -> Any:
    """A pair whose count stops and whose sum goes on by it."""
    n = whole(random, 3, 10**5)

    def combine(a: Any, b: Any) -> Any:
        return minimum(a.n + b.n, n), where(a.n >= n, a.s, a.s + b.s)

    return (n,), combine, None, {"fields": ("n", "s"), "lift": lambda x: (1, x)}


def wrong_powers(random: Random) -> Any:
    p, q = random.sample((1.0, 2.0, 3.0, 4.0), 2)
    return (p, q), lambda a, b: (a**p + b**p) ** (1 / q), 0, {"lift": abs, "domain": (0.1, 100)}


def wraps_at_a_limit(random: Random) -> Any:
    """Right for floats; of whole numbers an infinity is their dtype's limit, and is computed with."""
    k, dtype = whole(random, 1, 1000), either(random, torch.int64, torch.int32)
    lift = either(random, lambda x: x * k, lambda x: 2.5 * k - math.exp(minimum(x, 3)) * k)
    if random.randrange(2):  # the best prefix
        combine = lambda a, b: (a.sum + b.sum, maximum(a.best, a.sum + b.best))  # noqa: E731  # one of two
        identity, fields = (0, -INF), ("sum", "best")
    else:  # the largest difference of a later and an earlier one
        combine = lambda a, b: (  # noqa: E731
            minimum(a.low, b.low), maximum(a.high, b.high), maximum(maximum(a.gain, b.gain), b.high - a.low),
        )  # fmt: skip
        identity, fields = (INF, -INF, -INF), ("low", "high", "gain")

    def lifted(x: Any) -> Any:
        return (lift(x), lift(x)) if len(fields) == 2 else (lift(x), lift(x), 0)

    return (k, dtype), combine, identity, {"fields": fields, "lift": lifted, "dtypes": dtype}


WRONG: dict[str, Kind] = {
    f.__name__.replace("_", " "): f
    for f in (
        reset_above, reset_of_a_side, reset_at_a_value, saturates_on_a_side, clips_a_signed_sum, switches_rule, tolerates,
        tolerates_in_proportion, modulus, rounds, rounds_whole, ties, means, nearly, restarts_a_window, subtracts, mixes_bits,
        turns_at_bits, forgets_when_rare, wrong_guard, capped_count, wrong_powers, wraps_at_a_limit,
    )
}  # fmt: skip


# ---------------------------------------------------------------------------------------------- right ones


def total(random: Random) -> Any:
    k = size(random, 1e-3, 1e3)
    return (k,), lambda a, b: a + b, 0, {"lift": lambda x: x * k, **some_dtypes(random)}


def total_in_disguise(random: Random) -> Any:
    k = size(random, 1e-3, 1e3)
    return (k,), lambda a, b: (a * k + b * k) / k, 0, {"domain": (-1e4, 1e4)}


def saturating(random: Random) -> Any:
    t = bound(random)
    lift = either(
        random, lambda x: minimum(abs(x), t), lambda x: minimum(x * x, t), lambda x: where(x > 0, 1, 0)
    )
    return (t,), lambda a, b: minimum(a + b, t), 0, {"lift": lift, **some_dtypes(random)}


def saturating_by_choice(random: Random) -> Any:
    t = bound(random)
    return (
        (t,),
        lambda a, b: where(a + b > t, t, a + b),
        0,
        {"lift": lambda x: where(x > t, t, x), "domain": "nonnegative"},
    )


def velocities(random: Random) -> Any:
    c = size(random, 0.1, 1e3)
    end = random.uniform(0.5, 0.9999) * c
    return (c, end), lambda a, b: (a + b) / (1 + a * b / (c * c)), 0, {"domain": (-end, end)}


def either_event(random: Random) -> Any:
    return (
        (),
        either(random, lambda a, b: a + b - a * b, lambda a, b: 1 - (1 - a) * (1 - b)),
        0,
        {"domain": (0, 1)},
    )


def parallel(random: Random) -> Any:
    low, high = size(random, 1e-6, 1), size(random, 10, 1e6)
    return (low, high), lambda a, b: a * b / (a + b), None, {"domain": (low, high)}


def norms(random: Random) -> Any:
    p = either(random, 1.5, 2.0, 3.0, 4.0)
    if p == 2.0:
        return (p,), lambda a, b: math.sqrt(a * a + b * b), 0, {"lift": abs}
    return (p,), lambda a, b: (a**p + b**p) ** (1 / p), 0, {"lift": abs, "domain": (-100, 100)}


def circles(random: Random) -> Any:
    n = either(random, whole(random, 2, 10**6), size(random, 0.1, 1e3))
    by = random.randrange(2)
    wraps = lambda a, b: where(a + b >= n, a + b - n, a + b)  # noqa: E731  # one of two
    return (
        (n, by),
        wraps if by else lambda a, b: (a + b) % n,
        0,
        {"lift": lambda x: x % n, "domain": (-1e4, 1e4)},
    )


def hashes(random: Random) -> Any:
    n, base = either(random, 97, 1_000_003, 2**31 - 1), random.randrange(2, 300)

    def combine(a: Any, b: Any) -> Any:
        return (a.h * b.p + b.h) % n, a.p * b.p % n

    options = {"fields": ("h", "p"), "lift": lambda x: (x % n, base % n), "dtypes": torch.int64}
    return (n, base), combine, (0, 1), options


def products_of_a_modulus(random: Random) -> Any:
    n = random.randrange(2, 30_000)
    return (n,), lambda a, b: a * b % n, None, {"lift": lambda x: x % n, "dtypes": torch.int64}


def decibels(random: Random) -> Any:
    k = size(random, 0.1, 20)

    def combine(a: Any, b: Any) -> Any:
        top = maximum(a, b)
        return top + k * math.log1p(math.exp(-abs(a - b) / k))

    return (k,), combine, None, {"domain": (-200, 200)}


def softmax_pairs(random: Random) -> Any:
    k = size(random, 0.01, 10)

    def combine(a: Any, b: Any) -> Any:
        top = maximum(a.m, b.m)
        return top, a.l * math.exp((a.m - top) * k) + b.l * math.exp((b.m - top) * k)

    return (k,), combine, None, {"fields": ("m", "l"), "lift": lambda x: (x * 1.0, 1.0)}


def extremes(random: Random) -> Any:
    k = size(random, 1e-3, 1e3)
    of = random.randrange(4)
    combine = (maximum, minimum, lambda a, b: where(b > a, b, a), lambda a, b: where(a - b > 0, b, a))[of]
    return (k, of), combine, None, {"lift": lambda x: x * k}


def counted(random: Random) -> Any:
    return (), lambda a, b: (
        maximum(a.v, b.v), where(a.v == b.v, a.n + b.n, where(a.v > b.v, a.n, b.n)),
    ), None, {"fields": ("v", "n"), "lift": lambda x: (x, 1)}  # fmt: skip


def counted_whole(random: Random) -> Any:
    """A limit of whole numbers that is compared and chosen, and never computed with."""
    k, dtype = whole(random, 1, 1000), either(random, torch.int64, torch.int32)
    return (k, dtype), lambda a, b: (
        maximum(a.v, b.v), where(a.v == b.v, a.n + b.n, where(a.v > b.v, a.n, b.n)),
    ), (-INF, 0), {"fields": ("v", "n"), "lift": lambda x: (x * k, 1), "dtypes": dtype}  # fmt: skip


def located(random: Random) -> Any:
    first = random.randrange(2)

    def combine(a: Any, b: Any) -> Any:
        take = (b.v > a.v) | ((b.v == a.v) & ((b.i < a.i) if first else (b.i > a.i)))
        return where(take, b.v, a.v), where(take, b.i, a.i)

    options = {"fields": ("v", "i"), "lift": lambda x, i: (x, i), "index": True, "dtypes": ("input", "index")}
    return (first,), combine, None, options


def two_largest(random: Random) -> Any:
    k = size(random, 1e-3, 1e3)
    return (k,), lambda a, b: (
        maximum(a.f, b.f), maximum(minimum(a.f, b.f), maximum(a.s, b.s)),
    ), None, {"fields": ("f", "s"), "lift": lambda x: (x * k, -INF)}  # fmt: skip


def moments(random: Random) -> Any:
    k = size(random, 1e-3, 1e3)

    def combine(a: Any, b: Any) -> Any:
        n, d = a.n + b.n, b.mean - a.mean
        return n, a.mean + d * b.n / n, a.m2 + b.m2 + d * d * a.n * b.n / n

    return (k,), combine, None, {"fields": ("n", "mean", "m2"), "lift": lambda x: (1.0, x * k, 0.0)}


def weighed(random: Random) -> Any:
    low = size(random, 1e-6, 1)

    def combine(a: Any, b: Any) -> Any:
        w = a.w + b.w
        return w, (a.w * a.mean + b.w * b.mean) / w

    options = {"fields": ("w", "mean"), "lift": lambda x, w: (w, x), "domain": ((-100, 100), (low, 10))}
    return (low,), combine, None, options


def quaternion_products(random: Random) -> Any:
    def combine(p: Any, q: Any) -> Any:
        return (
            p.w * q.w - p.x * q.x - p.y * q.y - p.z * q.z, p.w * q.x + p.x * q.w + p.y * q.z - p.z * q.y,
            p.w * q.y - p.x * q.z + p.y * q.w + p.z * q.x, p.w * q.z + p.x * q.y - p.y * q.x + p.z * q.w,
        )  # fmt: skip

    k = size(random, 0.01, 3)
    options = {
        "fields": ("w", "x", "y", "z"),
        "lift": lambda x, y: (math.cos(x * k), math.sin(x * k), y * 0, y * 0.0),
    }
    return (k,), combine, (1, 0, 0, 0), either(random, options, {"fields": ("w", "x", "y", "z")})


def rotations(random: Random) -> Any:
    k = size(random, 0.01, 3)
    options = {
        "fields": ("c", "s"),
        "lift": lambda x: (math.cos(x * k), math.sin(x * k)),
        "domain": (-100, 100),
    }
    return (k,), lambda a, b: (a.c * b.c - a.s * b.s, a.s * b.c + a.c * b.s), (1, 0), options


def dual_numbers(random: Random) -> Any:
    return (
        (),
        lambda a, b: (a.v * b.v, a.v * b.d + a.d * b.v),
        (1, 0),
        {"fields": ("v", "d"), **some_dtypes(random)},
    )


def affine(random: Random) -> Any:
    k = size(random, 0.01, 1)
    options = either(random, {}, {"dtypes": torch.int64}, {"lift": lambda x: (k, x)})
    return (k,), lambda f, g: (g.a * f.a, g.a * f.b + g.b), (1, 0), {"fields": ("a", "b"), **options}


def matrices(random: Random) -> Any:
    k = random.randrange(1, 9)

    def combine(p: Any, q: Any) -> Any:
        return p.a * q.a + p.b * q.c, p.a * q.b + p.b * q.d, p.c * q.a + p.d * q.c, p.c * q.b + p.d * q.d

    lift = lambda x: (x, 1, k, 0)  # noqa: E731  # one of a table
    return (k,), combine, (1, 0, 0, 1), {"fields": tuple("abcd"), "lift": lift, **some_dtypes(random)}


def max_plus(random: Random) -> Any:
    k = size(random, 0.1, 100)

    def combine(p: Any, q: Any) -> Any:
        pairs = (
            ((p.a, q.a), (p.b, q.c)),
            ((p.a, q.b), (p.b, q.d)),
            ((p.c, q.a), (p.d, q.c)),
            ((p.c, q.b), (p.d, q.d)),
        )
        return tuple(maximum(x[0] + x[1], y[0] + y[1]) for x, y in pairs)

    return (k,), combine, None, {"fields": tuple("abcd"), "lift": lambda x: (x, k, -x, 0)}


def best_stretch(random: Random) -> Any:
    def combine(a: Any, b: Any) -> Any:
        return (
            a.t + b.t, maximum(a.h, a.t + b.h), maximum(b.e, b.t + a.e),
            maximum(maximum(a.b, b.b), a.e + b.h),
        )  # fmt: skip

    k = size(random, 0.1, 10)
    return (k,), combine, None, {"fields": tuple("theb"), "lift": lambda x: (x - k,) * 4}


def brackets(random: Random) -> Any:
    t = bound(random)

    def combine(a: Any, b: Any) -> Any:
        matched = minimum(a.open, b.closed)
        return a.open + b.open - matched, a.closed + b.closed - matched

    options = {"fields": ("open", "closed"), "lift": lambda x: (where(x > t, 1, 0), where(x < -t, 1, 0))}
    return (t,), combine, (0, 0), options


def clamps(random: Random) -> Any:
    k = size(random, 0.1, 100)

    def combine(f: Any, g: Any) -> Any:
        clamp = lambda x: maximum(minimum(x, g.high), g.low)  # noqa: E731  # used twice
        return clamp(f.low), clamp(f.high)

    return (k,), combine, None, {"fields": ("low", "high"), "lift": lambda x: (x - k, x + k)}


def last_beyond(random: Random) -> Any:
    t, of = bound(random), random.randrange(2)
    if of:
        return (t, of), lambda a, b: where(b > t, b, a), 0, {"lift": lambda x: where(x > t, x, 0)}
    return (t, of), lambda a, b: where(a != 0, a, b), 0, {"lift": lambda x: where(x > t, x, 0)}


def segments(random: Random) -> Any:
    t = bound(random)

    def combine(a: Any, b: Any) -> Any:
        return a.cut | b.cut, where(b.cut, b.s, a.s + b.s)

    return (
        (t,),
        combine,
        (False, 0),
        {"fields": ("cut", "s"), "lift": lambda x: (x > t, x), "domain": "finite"},
    )


def bits(random: Random) -> Any:
    k, of = random.randrange(1, 1000), random.randrange(3)
    combine = (lambda a, b: a | b, lambda a, b: a & b, lambda a, b: a ^ b)[of]
    return (
        (k, of),
        combine,
        (0, -1, 0)[of],
        {"lift": lambda x: x & k if of != 1 else x | k, "dtypes": torch.int64},
    )


def intersections(random: Random) -> Any:
    k = size(random, 1e-3, 1e3)
    return (k,), lambda a, b: (maximum(a.low, b.low), minimum(a.high, b.high)), (-INF, INF), {
        "fields": ("low", "high"), "lift": lambda x: (x - k, x + k),
    }  # fmt: skip


def mobius(random: Random) -> Any:
    """Maps x -> (a x + 1) / (x + b) of their values at three points, without a scale: products of matrices, divided."""

    def combine(p: Any, q: Any) -> Any:
        d = p.c * q.b + 1
        return (p.a * q.a + p.b * q.c) / d, (p.a * q.b + p.b) / d, (p.c * q.a + q.c) / d

    k = size(random, 0.1, 10)
    options = {"fields": ("a", "b", "c"), "lift": lambda x: (x * k, 1.0, 0.5), "domain": (0.01, 10)}
    return (k,), combine, None, options


def longest_run(random: Random) -> Any:
    t = bound(random)

    def combine(a: Any, b: Any) -> Any:
        return (
            a.n + b.n, where(a.head == a.n, a.n + b.head, a.head), where(b.tail == b.n, b.n + a.tail, b.tail),
            maximum(maximum(a.best, b.best), a.tail + b.head),
        )  # fmt: skip

    def lift(x: Any) -> Any:
        one = where(x > t, 1, 0)
        return 1, one, one, one

    return (t,), combine, (0, 0, 0, 0), {"fields": ("n", "head", "tail", "best"), "lift": lift}


def first_so_many(random: Random) -> Any:
    """Counts that stop at n, and the sum of the first n elements' shares: an order that a cap keeps."""
    n = whole(random, 2, 10**5)
    return (
        (n,),
        lambda a, b: minimum(a + b, n),
        0,
        {"lift": lambda x: where(x > 0, 1, 0), "dtypes": torch.int64},
    )


def thinned(random: Random) -> Any:
    """A product that does not fall below a floor."""
    t = random.uniform(1e-6, 0.5)
    return (t,), lambda a, b: maximum(a * b, t), None, {"lift": lambda x: maximum(x, t), "domain": (0, 1)}


COMMUTING: dict[str, Kind] = {
    f.__name__.replace("_", " "): f
    for f in (
        total, total_in_disguise, saturating, saturating_by_choice, velocities, either_event, parallel, norms,
        circles, products_of_a_modulus, decibels, softmax_pairs, extremes, counted, counted_whole, located,
        two_largest, moments, weighed, rotations, dual_numbers, bits, intersections, first_so_many, thinned,
    )
}  # fmt: skip
ORDERED: dict[str, Kind] = {
    f.__name__.replace("_", " "): f
    for f in (
        hashes, affine, matrices, max_plus, best_stretch, brackets, clamps, last_beyond, segments, mobius, longest_run,
    )
}  # fmt: skip
RIGHT = {**COMMUTING, **ORDERED, "quaternion products": quaternion_products}
