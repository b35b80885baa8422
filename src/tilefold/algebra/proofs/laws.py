"""Laws checked by example: identity, associativity, a declared commutativity, and that absorb agrees with combine.

Only reachable states are tried: lifted samples, combinations of those, and the identity. Every triple of states is one
row of a tensor, so that a few hundred cost as much as one. Samples come in five pools:

    moderate   small dyadic numbers with many ties; nothing overflows, so any difference breaks a law
    infinite   the same with infinities; rows that make NaN (inf - inf) prove nothing, infinities must agree exactly
    huge       far larger numbers; rows that overflow prove nothing, and floats are only combined with the identity and
               with sides exchanged: cancellation inside a combine may lose all digits, in one grouping and not in another
    near       the constants of the monoid's own graphs and their neighbours, in rows of their own: a law may break at 1000
               and nowhere else; rows that overflow prove nothing here either
    many       states of many lifts, and pairs on both sides of every comparison in combine (`reach`)

NaN is no sample. What a fold of NaN gives is the author's choice, and one made with a bare comparison
(where(b > a, b, a)) drops or keeps it by the order of the elements, which a law could only forbid. `tilefold.math.maximum`
and `minimum` keep it; the catalogue's rules are torch's, and tested against torch.
A block form that was derived, though, is tried with NaN too: it must do what its combine does.

Samples refuse, they do not show: a combine that agrees with its exchanged sides in every sample may still not commute. So
`is_commutative` asks the graph first (`commute`), and what the graph does not show is ordered.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from tilefold.algebra.algebra import PRESENT, Algebra, completed
from tilefold.algebra.domain import ANY, NAMES, Domain, domain_text
from tilefold.algebra.dtypes import is_float
from tilefold.algebra.evaluate import Operand, evaluate_as
from tilefold.algebra.proofs import derive
from tilefold.algebra.proofs.agreement import (
    any_of,
    apart_in_effect,
    begins_infinite,
    close,
    disagreement,
    first_sure,
    has,
    magnitude,
    not_finite,
    results_apart,
)
from tilefold.algebra.proofs.commute import shown_commutative
from tilefold.algebra.proofs.exact import Exact
from tilefold.algebra.proofs.exact import State as ExactState
from tilefold.algebra.proofs.reach import pool_of_many
from tilefold.algebra.proofs.samples import (
    ELEMENTS,
    MORE_SAMPLES,
    ROWS,
    SAMPLES,
    Pool,
    State,
    as_state,
    kinds_of,
    pool_of,
    pools_of,
)
from tilefold.algebra.written import Program, as_written
from tilefold.errors import DtypeError, LawError
from tilefold.runtime.caching import kept_outside_modes

INFINITY = float("inf")
_MOST_SQUARED = 3_037_000_500  # of whole numbers below it products fit int64
_NAME = "\0"
_IDENTITIES = "give the state that changes nothing, or identity=None"


def verify(algebra: Algebra, name: str) -> bool:
    """Check the laws of a monoid on samples of float64, int64 and bool elements, of those that it can fold.

    Returns:
        Whether it may fold integers and bool. An infinity stands for the dtype's limit there, with which arithmetic wraps:
        laws that hold for floats and break for whole numbers then say that there is no such fold.

    Raises:
        LawError: a law fails; the message shows the states and both results, and where the laws hold: for whole numbers, or
            in one of the usual domains.
        DtypeError: the monoid folds none of the sampled dtypes.
    """
    folds_integers, refused, why = _verdict(algebra)
    if refused is not None:
        raise refused(why.replace(_NAME, name))
    return folds_integers


@kept_outside_modes(1024)
def _verdict(algebra: Algebra) -> tuple[bool, type[LawError | DtypeError] | None, str]:
    """Whether it folds integers, or the error, in which the monoid's name is `_NAME`."""
    try:
        return _verified(_widened(algebra), _NAME), None, ""
    except DtypeError as error:
        return False, DtypeError, str(error)
    except LawError as error:
        return False, LawError, f"{error}{_where_lawful(_widened(algebra))}"


def _widened(algebra: Algebra) -> Algebra:
    """The algebra with float64 for narrower fields, in which a law's break shows that these would round away."""
    wide = (torch.float64 if isinstance(d, torch.dtype) and is_float(d) else d for d in algebra.dtypes)
    return replace(algebra, dtypes=tuple(wide))


def _where_lawful(algebra: Algebra) -> str:
    """What may be declared so that the laws hold, for the end of a message; nothing where no such thing is known.

    Whole numbers where infinities are not what breaks them: dtypes=torch.int64 cuts the fractions of floats.
    """
    finite = replace(algebra, domain=(NAMES["finite"],) * algebra.inputs)
    whole = replace(algebra, dtypes=tuple(torch.int64 if d == "compute" else d for d in algebra.dtypes))
    only_infinite = algebra.domain is None and _is_lawful(finite)
    if not only_infinite and whole != algebra and _is_lawful(whole):
        return ", or declare dtypes=torch.int64 if it is for whole numbers: the laws hold for those"
    endless = [f for f, n in enumerate(algebra.identity_numbers or ()) if n in (INFINITY, -INFINITY)]
    floats = tuple(torch.float64 if f in endless else d for f, d in enumerate(algebra.dtypes))
    if floats != algebra.dtypes and _is_lawful(replace(algebra, dtypes=floats)):
        named = ", ".join(algebra.fields[f] for f in endless)
        return (
            f", or declare the dtype torch.float64 of {named}: the infinity of a whole number is its dtype's limit, with "
            "which arithmetic wraps, and in floats the laws hold"
        )
    domain = None if algebra.domain is not None else _lawful_domain(algebra)
    if domain is None:
        return ""
    return f", or declare domain={domain_text(domain)} if no input is ever outside of it: the laws hold there"


def _is_lawful(algebra: Algebra) -> bool:
    try:
        _verified(algebra, _NAME)
    except (LawError, DtypeError):
        return False
    return True


def _lawful_domain(algebra: Algebra) -> Domain | None:
    """One input, or all of them, in the first of the usual ranges that makes a monoid of it."""
    each = [{number} for number in range(algebra.inputs)]
    for inputs in [*each, *([set(range(algebra.inputs))] if algebra.inputs > 1 else [])]:
        for usual in ("finite", "nonnegative", "positive"):
            domain = tuple(NAMES[usual] if number in inputs else ANY for number in range(algebra.inputs))
            if _is_lawful(replace(algebra, domain=domain)):
                return domain
    return None


def _verified(algebra: Algebra, name: str) -> bool:
    tried = set[bool]()
    infinite = begins_infinite(algebra)
    for pool in _pools(completed(algebra)):
        floats = is_float(pool.program.elements[0])
        tried.add(floats)
        if floats or not infinite or True not in tried:
            _check(pool, name)
        elif not _holds(pool, name):
            return False
    if not tried:
        raise DtypeError(
            f"{name}: a monoid must fold floats, integers or bool, got functions or an identity that take none of them "
            f"({_refusals(completed(algebra))}); see which operations need which dtype, or pass check=False"
        )
    return True


def _pools(algebra: Algebra) -> Iterator[Pool]:
    """Samples of a few lifts, then of many. Where whole numbers wrap at an infinity's limit, many say nothing."""
    few = _few(algebra)
    yield from few
    dtypes = [pool.program.elements[0] for pool in few]
    for dtype in dict.fromkeys(dtypes):
        wraps = not is_float(dtype) and begins_infinite(algebra)
        if wraps or (dtype == torch.bool and dtypes[0] != torch.bool):
            continue
        many = pool_of_many(algebra, (dtype,) * algebra.inputs)
        if many is not None:
            yield many


@kept_outside_modes(2)
def _few(algebra: Algebra) -> tuple[Pool, ...]:
    """Samples of a few lifts, which the laws and the order are tried on one after the other."""
    return tuple(pools_of(algebra))


def _check(pool: Pool, name: str) -> None:
    _check_identity(pool, name)
    if not pool.cancels:
        _check_associativity(pool, name)
    if pool.program.algebra.commutative:
        _check_commutativity(pool, name)
    if not pool.cancels and pool.blocks and pool.program.absorb is not None:
        _check_absorb(pool, name)


def _refusals(algebra: Algebra) -> str:
    """Why an algebra folds no sample, each dtype's reason."""
    reasons = [_refusal(algebra, dtype) for dtype in SAMPLES]
    return "; ".join(r for r in reasons if r is not None) or "no sample could be computed"


def _refusal(algebra: Algebra, dtype: torch.dtype) -> str | None:
    try:
        as_written(algebra, (dtype,) * algebra.inputs)
    except DtypeError as error:
        reason = str(error).rpartition("; ")[0]  # without its fix
        return f"{str(dtype).removeprefix('torch.')}: {reason}"
    return None


def _holds(pool: Pool, name: str) -> bool:
    try:
        _check(pool, name)
    except LawError:
        return False
    return True


@kept_outside_modes(1024)
def is_commutative(algebra: Algebra, *, sampled: bool = True) -> bool:
    """Whether combine's graph shows that sides may be exchanged, and (if `sampled`) no sample says otherwise."""
    if not shown_commutative(algebra):
        return False
    return not sampled or all(_first_exchanged(pool) is None for pool in _pools(completed(_widened(algebra))))


def _exchanged(pool: Pool) -> tuple[torch.Tensor, State, State]:
    """The rows in which combine(a, b) and combine(b, a) differ, and both."""
    a, b, _ = pool.states
    one, other = pool.combine(a, b), pool.combine(b, a)
    return disagreement(pool, one, other, [a, b]), one, other


def _first_exchanged(pool: Pool) -> int | None:
    """The first row in which sides may not be exchanged."""
    return first_sure(pool, *_exchanged(pool), _sides)


def _sides(exact: Exact, a: ExactState, b: ExactState, c: ExactState) -> list[ExactState]:
    """combine(a, b) and combine(b, a)."""
    return [exact.combine(a, b), exact.combine(b, a)]


def _groupings(exact: Exact, a: ExactState, b: ExactState, c: ExactState) -> list[ExactState]:
    """combine(combine(a, b), c) and combine(a, combine(b, c)), and what they are made of."""
    ab, bc = exact.combine(a, b), exact.combine(b, c)
    return [exact.combine(ab, c), exact.combine(a, bc), ab, bc]


def _check_identity(pool: Pool, name: str) -> None:
    e = pool.identity
    twice = pool.combine(e, e)
    if any(bool(v.isnan().any()) for v in twice) and not any(bool(v.isnan().any()) for v in e):
        raise LawError(_identity_guard(pool, name, e, twice))
    for which, s in enumerate((e, *pool.states) if pool.blocks else (e, pool.states[0])):
        for left, got in ((True, pool.combine(e, s)), (False, pool.combine(s, e))):
            rows = disagreement(pool, got, s, [s])  # a NaN of the identity excuses nothing
            if bool(rows.any()) and not _makes_nan(pool, got, s):
                rows = apart_in_effect(pool, got, s, [s])  # it may be another form of s
            row = first_sure(pool, rows, got, s, functools.partial(_beside_identity, which=which, left=left))
            if row is not None:
                call = "combine(identity, s)" if left else "combine(s, identity)"
                raise LawError(
                    f"{name}: {call} must be s, got {_show(pool, got, row)} for s = {_show(pool, s, row)} and "
                    f"identity = {_show(pool, e, row)} ({_elements(pool)}); "
                    f"{_of_a_mean(pool) or _of_a_remainder(pool, left, got, row) or _IDENTITIES}"
                )


def _beside_identity(exact: Exact, *states: ExactState, which: int, left: bool) -> list[ExactState]:
    """A state, combined with the identity, and itself."""
    s, e = (exact.identity, *states)[which], exact.identity
    return [exact.combine(e, s) if left else exact.combine(s, e), s]


def _makes_nan(pool: Pool, got: State, state: State) -> bool:
    """Whether a state without a NaN gets one, where elements are finite."""
    return pool.kind != "infinite" and bool((has(torch.isnan, got) & ~has(torch.isnan, state)).any())


def _identity_guard(pool: Pool, name: str, identity: State, twice: State) -> str:
    """The usual cause is (-inf) - (-inf) in a max-shifted sum: say which field to guard."""
    fields = pool.program.algebra.fields
    infinite = [
        (f, v) for f, v in zip(fields, pool.program.identity, strict=True) if v in (INFINITY, -INFINITY)
    ]
    field, value = infinite[0] if infinite else (fields[0], pool.program.identity[0])
    return (
        f"{name}: combine(identity, identity) must be the identity {_show(pool, identity, 0)}, "
        f"got {_show(pool, twice, 0)} ({_elements(pool)}): NaN comes of inf - inf or 0 / 0; guard what is "
        f"subtracted or divided by, as in where({field} == {value}, 0, {field}), or pass identity=None, "
        "which selects absent elements away"
    )


def _check_associativity(pool: Pool, name: str) -> None:
    a, b, c = pool.states
    ab, bc = pool.combine(a, b), pool.combine(b, c)
    left, right = pool.combine(ab, c), pool.combine(a, bc)
    row = first_sure(pool, apart_in_effect(pool, left, right, [a, b, c, ab, bc]), left, right, _groupings)
    if row is not None:
        raise LawError(
            f"{name}: combine must be associative, got combine(combine(a, b), c) = {_show(pool, left, row)} but "
            f"combine(a, combine(b, c)) = {_show(pool, right, row)} for a = {_show(pool, a, row)}, "
            f"b = {_show(pool, b, row)}, c = {_show(pool, c, row)} ({_elements(pool)}); {_remedy(pool)}"
        )


def _of_a_remainder(pool: Pool, left: bool, got: State, row: int) -> str:
    """What to do where combine takes a remainder that lift does not: the identity changes a state once, and not again."""
    again = pool.combine(pool.identity, got) if left else pool.combine(got, pool.identity)
    if not _divisors(pool) or bool(disagreement(pool, again, got, [got])[row]):
        return ""
    return "take the remainder in lift too, lift=lambda x: x % P, so that an element is a state as combine gives them"


def _divisors(pool: Pool) -> list[float]:
    """Of the remainders that combine takes; infinite where it is no constant."""
    nodes = pool.program.combine.graph.nodes
    divisors = (nodes[node.args[1]] for node in nodes if node.op == "mod")
    return [abs(node.value) if node.op == "const" else INFINITY for node in divisors]


def _remedy(pool: Pool) -> str:
    """How to make a monoid of what is none."""
    if _MOST_SQUARED < max(_divisors(pool), default=0) < INFINITY:
        return "take P below 2^31 in x % P: products of whole numbers wrap at 2^63, and other remainders are left then"
    return _of_a_mean(pool) or (
        "carry in the state what a later combine needs (a mean needs its count, a rolling hash the power of its base), "
        "and finish in project"
    )


def _of_a_mean(pool: Pool) -> str:
    """How to fold a mean, where combine is one of its two sides: it gives s of s and s, and else what lies between."""
    a, b, _ = pool.states
    both, same, turned = pool.combine(a, b), pool.combine(a, a), pool.combine(b, a)
    tolerance = pool.rounding * magnitude([a, b, both])
    numbers = [f for f, v in enumerate(a) if v.is_floating_point()]
    finite = ~has(not_finite, a, b, both, same)
    differ = any_of(~close(a[f], b[f], tolerance) for f in numbers) & finite
    between = [
        (both[f] > a[f].minimum(b[f])) & (both[f] < a[f].maximum(b[f])) | (a[f] == b[f]) for f in numbers
    ]
    is_mean = functools.reduce(torch.logical_and, between, differ)
    repeats = functools.reduce(
        torch.logical_and, [close(x, y, tolerance) for x, y in zip(same, a, strict=True)], finite
    )
    if (
        not bool((repeats == finite).all())
        or 10 * int(is_mean.sum()) < 9 * int(differ.sum())
        or not bool(is_mean.any())
    ):
        return ""
    begin = "a mean of two sides is no monoid, since it forgets how many elements each stands for: carry"
    if bool((any_of(~close(both[f], turned[f], tolerance) for f in numbers) & finite).any()):
        return (
            f"{begin} what a later element leaves of earlier ones, as w * a + (1 - w) * b does in the maps a -> w * a + "
            "(1 - w) * x: tilefold.monoids.AFFINE with the inputs w and (1 - w) * x"
        )
    return (
        f'{begin} the sum and the count, and divide in project: fields=("sum", "count"), lift=lambda x: (x, 1), combine='
        "lambda a, b: (a.sum + b.sum, a.count + b.count), identity=(0, 0), project=lambda sum, count: sum / count; of log(x) "
        "for a geometric mean, of 1 / x for a harmonic one, and project undoes that"
    )


def _check_commutativity(pool: Pool, name: str) -> None:
    a, b, _ = pool.states
    rows, one, other = _exchanged(pool)
    if bool(rows.any()):
        rows = apart_in_effect(pool, one, other, [a, b])  # they may be two forms of one state
    row = first_sure(pool, rows, one, other, _sides)
    if row is not None:
        raise LawError(
            f"{name}: commutative=True must hold, got combine(a, b) = {_show(pool, one, row)} but combine(b, a) = "
            f"{_show(pool, other, row)} for a = {_show(pool, a, row)}, b = {_show(pool, b, row)} ({_elements(pool)}); "
            "leave `commutative` out to have it found"
        )


def _check_absorb(pool: Pool, name: str) -> None:
    """The last state's elements, as one block, after the first state, after the identity, and as a first block.

    Where order does not matter blocks come in any: positions may be before the state's own then.
    Absorbing may leave another form of the state than combining does: then the projections must agree.
    """
    a, _, c = pool.states
    commutes = not bool(disagreement(pool, pool.combine(a, c), pool.combine(c, a), [a, c]).any())
    _check_absorbed(pool, name, 0, 2)
    if pool.program.algebra.index and commutes:
        _check_absorbed(pool, name, 2, 0)


def _check_absorbed(pool: Pool, name: str, state: int, block: int) -> None:
    for steps, got in _absorbed(pool, pool.program, ELEMENTS, state, block):
        s, want = steps[0], steps[-1]
        lost = has(torch.isnan, s)
        if pool.kind == "infinite":
            lost |= has(torch.isnan, want) | has(torch.isposinf, want)
        row = _absorbs_apart(pool, steps, got, lost)
        if row is not None:
            taken = [[v.item() for v in b[row]] for b in _stacked(pool, ELEMENTS, block)]
            raise LawError(
                f"{name}: absorb must equal combining the lifted elements one by one, got {_show(pool, got, row)} "
                f"instead of {_show(pool, want, row)} for the state {_show(pool, s, row)} and the block "
                f"{', '.join(map(str, taken))} ({_elements(pool)}); mend absorb or leave it out"
            )


def _stacked(pool: Pool, length: int, which: int) -> list[torch.Tensor]:
    """The first elements of a state, as a block [rows, length] an input."""
    return [torch.stack(column, dim=1) for column in zip(*pool.blocks[which][:length], strict=True)]


def _absorbed(
    pool: Pool, blocks: Program, length: int, state: int = 0, block: int = 2
) -> Iterator[tuple[list[State], State]]:
    """A block after a state, after the identity, and as a first one: the steps of combining, and what `blocks` gives."""
    for s, typed in (
        (pool.states[state], blocks.absorb),
        (pool.identity, blocks.absorb),
        (pool.identity, blocks.begin),
    ):
        assert typed is not None
        rows = [v[:, None] for v in s] if typed is blocks.absorb else []
        blocked = [*rows, *_stacked(pool, length, block)]
        absorbed = evaluate_as(typed, blocked, pool.program.state, block_dims=(1,))
        steps = [s]
        for element in pool.lifted[block][:length]:
            steps.append(pool.combine(steps[-1], element))
        yield steps, as_state([_row(v) for v in absorbed], pool.program)


def _absorbs_apart(pool: Pool, steps: Sequence[State], got: State, lost: torch.Tensor) -> int | None:
    """The first row in which an absorbed block and the last of `steps` differ, in the state and in the result."""
    rows = disagreement(pool, got, steps[-1], steps, lost=lost)
    if bool(rows.any()) and pool.program.algebra.project is not None:
        rows = results_apart(pool, got, steps[-1], steps, lost)
    return int(rows.nonzero()[0]) if bool(rows.any()) else None


@kept_outside_modes(256)
def blocks_agree(algebra: Algebra, dtypes: tuple[torch.dtype, ...]) -> bool:
    """Whether the block form that combine suggests gives what combining one by one gives, for elements of these dtypes.

    Tried on the samples of the laws and on NaN, with blocks of one element and of several. Stricter than for a block form
    that an author answers for: a block may make NaN only where combining does, with the identity at least.
    """
    kinds = {kind for d in dtypes for kind in kinds_of(algebra, d, (*SAMPLES[d], *MORE_SAMPLES[d]))}
    pools = [pool_of(algebra, dtypes, kind) for kind in sorted(kinds)]
    return all(pool is not None and (pool.cancels or _blocks_agree(pool)) for pool in pools)


def _blocks_agree(pool: Pool) -> bool:
    blocks, e = derive.with_blocks(pool.program), pool.identity
    if blocks is None or bool(has(torch.isnan, pool.combine(e, e)).any()):
        return False
    for length in (1, ELEMENTS):
        for steps, got in _absorbed(pool, blocks, length):
            lost = torch.zeros(ROWS, dtype=torch.bool)
            if pool.kind == "infinite":
                want = steps[-1]
                lost = has(torch.isnan, want, pool.combine(e, want), pool.combine(want, e))
            if _absorbs_apart(pool, steps, got, lost) is not None:
                return False
    return True


def _row(value: Operand) -> Operand:
    return value[:, 0] if isinstance(value, torch.Tensor) and value.dim() == 2 else value


def _show(pool: Pool, state: State, row: int) -> str:
    fields = pool.program.algebra.fields
    shown = (f"{f}={v[row].item()!r}" for f, v in zip(fields, state, strict=True) if f != PRESENT)
    return f"({', '.join(shown)})"


def _elements(pool: Pool) -> str:
    dtype, domain = str(pool.program.elements[0]).removeprefix("torch."), pool.program.algebra.domain
    return f"{dtype} elements" if domain is None else f"{dtype} elements in the domain {domain_text(domain)}"
