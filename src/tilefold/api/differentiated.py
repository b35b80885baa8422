"""Calls that autograd sees: a call's rule (what is saved, and the inputs' cotangents), and the one autograd.Function.

What a plain call is made of (its executable, what it saves, its backward's launches) is found the first time, and kept for
calls with tensors of the same layouts, as calls without a gradient are: `Differentiated` is their executable.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._functorch import autograd_function
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from tilefold.api import dispatch
from tilefold.api.replays import Replay, Tape
from tilefold.planner.plan import Plan
from tilefold.runtime.modes import is_batched, is_dual, of_batches
from tilefold.runtime.switch import Alike, layouts

# Private names of torch, as its functorch uses them: a Function that a kernel of the dispatcher may apply, and the context in
# which it may inside of a transform.
SingleLevel: Any = torch.autograd.function._SingleLevelFunction
one_level: Any = autograd_function.enable_single_level_autograd_function  # type: ignore[attr-defined]
MOST = 8  # layouts of cotangents for which a backward is kept

Run = Callable[[Sequence[Tensor]], list[Tensor]]


class Call:
    """A call as its backward needs it: what is saved, which results change with an element, and the inputs' cotangents."""

    fills = True  # whether a cotangent that nobody asked for comes as zeros; else as None

    def check(self, tensors: Sequence[Tensor]) -> None:
        """Refuse a call that has no derivative.

        Raises:
            GradientError: it has none.
        """

    def given(self, made: list[Tensor]) -> list[Tensor]:
        """The results that the caller gets, of those that the forward call makes."""
        return made

    def read(self, made: list[Tensor]) -> list[Tensor]:
        """Those of them that a plain call's caller reads: all, where nothing else is said."""
        return self.given(made)

    def saved(
        self, tensors: Sequence[Tensor], made: Sequence[Tensor], wrt: Sequence[int]
    ) -> Sequence[Tensor]:
        """What the backward reads: the inputs, where nothing else is said."""
        return tensors

    def moves(self, result: int, tensors: Sequence[Tensor]) -> bool:
        """Whether a result changes with an element."""
        return True

    @abc.abstractmethod
    def backward(self, saved: Sequence[Tensor], grads: Sequence[Any], wrt: Sequence[int]) -> list[Any]:
        """The inputs' cotangents, None of those that are not asked for."""


def at_places(values: Sequence[Any], places: Sequence[int], count: int) -> list[Any]:
    """So many, None but for the values at their places: a cotangent for each input."""
    found: list[Any] = [None] * count
    for i, value in zip(places, values, strict=True):
        found[i] = value
    return found


class Dual:
    """The forward derivatives of a call's tensors, for a backward within their level: of values that it reads, too.

    Torch ends a level by taking the tangents from all that has one, and so from `_holders`.
    """

    def __init__(self, tensors: Sequence[Tensor], tangents: Sequence[Tensor | None], again: Run) -> None:
        self._again = again
        self._holders = [
            None if d is None else forward_ad.make_dual(t.detach(), d, level=0)  # type: ignore[no-untyped-call]  # torch's own
            for t, d in zip(tensors, tangents, strict=True)
        ]

    def read(self, rule: Call, tensors: Sequence[Tensor], wrt: Sequence[int]) -> Sequence[Tensor] | None:
        """What the backward reads, made again of tensors with their derivatives; None where the level has ended."""
        if not any(h is not None and is_dual(h) for h in self._holders):
            return None
        given = [
            t if h is None else forward_ad.make_dual(t, forward_ad.unpack_dual(h, level=0).tangent, level=0)  # type: ignore[no-untyped-call]
            for t, h in zip(tensors, self._holders, strict=True)
        ]
        return rule.saved(given, self._again(given), wrt)


@dataclass
class Backward:
    """A backward of one layout: how it is made again, if it can be, and what knows the layout once it came again."""

    replay: Replay | None
    alike: Alike | None = None


class Differentiated:
    """A call and its backward. `run` makes the results.

    One that is `kept` is for tensors of one layout: what its first call found serves the later ones.
    """

    plan: Plan | None = None
    _wrt: tuple[int, ...] = ()
    _first: list[Tensor] | None = None  # the first call's results, once
    _forward: Replay | None = None
    _saved: tuple[int, ...] | None = None  # places among inputs and results
    _flat: tuple[int, ...] = ()  # the results that have no derivative
    _shown: tuple[int, ...] | None = (
        None  # places of the results that autograd sees, where others are but saved
    )
    _inputs = _results = 0
    # The backward made last: which cotangents it has, and the layouts of what it reads.
    _latest: tuple[list[bool], Alike, Replay] | None = None

    def __init__(self, rule: Call, run: Run, kept: bool = False, dual: Dual | None = None) -> None:
        self._dual, self._count = dual, 0
        self.rule, self.run, self.kept, self._is_known = rule, run, kept, False
        self._backwards: dict[Any, Backward] = {}

    def begin(self, tape: Tape, made: list[Tensor]) -> None:
        """Take what a first call of `run` made."""
        self._first, self._forward, self.plan = made, tape.replay(made), dispatch.last_plan()

    def call(self, *tensors: Tensor) -> list[Tensor]:
        """The results of a call, with its backward.

        Raises:
            GradientError: it has none.
        """
        made = list(_Function.apply(self, *tensors))
        return self.rule.given(made) if self._shown is None else made

    def forward(self, ctx: Any, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The results, and what is saved."""
        # Of views that are made in a Function torch lets nobody change the elements.
        made = [t.data if t._is_view() else t for t in self._made(tensors)]
        if not self._is_known:
            self._know(ctx, tensors, made)
        ctx.set_materialize_grads(self.rule.fills)
        if self._saved is None:
            own = tensors if self._dual is not None else ()
            self._count = len(own)
            ctx.save_for_backward(*own, *self.rule.saved(tensors, made, self._wrt))
        elif self._saved:
            every = (*tensors, *made)
            ctx.save_for_backward(*[every[i] for i in self._saved])
        if self._flat:
            ctx.mark_non_differentiable(*[made[i] for i in self._flat])
        return tuple(made if self._shown is None else [made[i] for i in self._shown])

    def _made(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        first, self._first = self._first, None
        if first is not None:
            return first
        again = None if self._forward is None else self._forward(tensors)
        return self.run(tensors) if again is None else again  # type: ignore[return-value]  # no result is None

    def _know(self, ctx: Any, tensors: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        self.rule.check(tensors)
        self._wrt = tuple([i for i, needed in enumerate(ctx.needs_input_grad[1:]) if needed])
        self._flat = tuple(
            [i for i, t in enumerate(made) if not (t.is_floating_point() and self.rule.moves(i, tensors))]
        )
        self._is_known = True
        if self.kept:
            every = [id(t) for t in (*tensors, *made)]
            saved = [id(t) for t in self.rule.saved(tensors, made, self._wrt)]
            if all(every.count(t) == 1 for t in saved):  # one that is given twice may be two in another call
                self._saved = tuple([every.index(t) for t in saved])
                self._hide(tensors, made)

    def _hide(self, tensors: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        """Have autograd see what the caller reads alone, if the other results can be made again of what is saved.

        Each result that it sees costs the host, in both directions. Others are made again where a backward is recorded.
        """
        every, read = [id(t) for t in made], [id(t) for t in self.rule.read([*made])]
        again = not self.rule.fills and {*range(len(tensors))} <= {*(self._saved or ())}
        if again and len(read) < len(every) and all(every.count(t) == 1 for t in read):
            self._shown = tuple([every.index(t) for t in read])
            self._inputs, self._results = len(tensors), len(made)
            self._flat = tuple([i for i in self._flat if i in self._shown])

    def _whole(self, saved: Sequence[Tensor], grads: Sequence[Any]) -> tuple[Sequence[Tensor], Sequence[Any]]:
        """What the rule reads: in a backward that is recorded values with derivatives, and hidden results' cotangents."""
        if self._shown is None or self._saved is None:
            return saved, grads
        seen = dict(zip(self._shown, grads, strict=True))
        if torch.is_grad_enabled():
            known = dict(zip(self._saved, saved, strict=True))
            tensors = [known[i] for i in range(self._inputs)]
            made = list(_Function.apply(Differentiated(self.rule, self.run), *tensors))
            saved = self.rule.saved(tensors, made, self._wrt)
        return saved, [seen.get(i) for i in range(self._results)]

    def backward(self, saved: Sequence[Tensor], grads: Sequence[Any]) -> Sequence[Any]:
        """The inputs' cotangents."""
        if not self.kept or is_dynamo_compiling():
            return self._unkept(saved, grads)
        every, there = (*saved, *grads), [g is not None for g in grads]
        some = every if all(there) else (*saved, *(g for g in grads if g is not None))
        replay = None
        if self._latest is not None and self._latest[0] == there and self._latest[1](some):
            replay = self._latest[2]
        elif (key := layouts(every)) is not None:
            if key not in self._backwards:
                tape = Tape(every)
                with dispatch.noting(tape):
                    found = self.rule.backward(*self._whole(saved, grads), self._wrt)
                if len(self._backwards) >= MOST:
                    self._backwards.clear()
                self._backwards[key] = Backward(tape.replay(found))
                return found
            known = self._backwards[key]
            if (replay := known.replay) is not None:
                if known.alike is None or not known.alike(some):  # a tensor that was given twice may be two
                    known.alike = Alike(some)
                self._latest = there, known.alike, replay
        made = None if replay is None else replay(every)
        if replay is None or made is None:
            return self._unkept(saved, grads)
        dispatch.planned(replay.plan)
        return made

    def _unkept(self, saved: Sequence[Tensor], grads: Sequence[Any]) -> Sequence[Any]:
        # torch.func.vjp's backward is called after its transform: torch's own operations unwrap what it saved, too.
        saved = [torch._C._functorch.unwrap_if_dead(t) for t in saved]
        if self._dual is not None:
            tensors, saved = saved[: self._count], saved[self._count :]
            saved = self._dual.read(self.rule, tensors, self._wrt) or saved
        saved, grads = self._whole(saved, grads)
        if any(g is not None and is_batched(g) for g in grads):
            return of_batches(lambda each: self.rule.backward(saved, each, self._wrt), grads)
        return self.rule.backward(saved, grads, self._wrt)


class _Function(SingleLevel):  # type: ignore[misc]  # torch's class is untyped
    """What autograd sees of a call."""

    @staticmethod
    def forward(ctx: Any, call: Differentiated, *tensors: Tensor) -> Any:
        ctx.call = call
        return call.forward(ctx, tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return None, *ctx.call.backward(ctx.saved_tensors, grads)


def applied(
    rule: Call,
    run: Run,
    tensors: Sequence[Tensor],
    key: Any = None,
    plain: Run | None = None,
    dual: Dual | None = None,
) -> list[Tensor]:
    """The results of a call, with its backward; calls of `key`, if there is one, are answered by it from now on.

    Where one function of torch's makes the results (of `plain`, if that is another call), whose derivative is this one,
    autograd looks into it.

    Raises:
        GradientError: it has none.
    """
    if key is None:
        return Differentiated(rule, run, dual=dual).call(*tensors)
    for way in (run,) if plain is None else (plain, run):
        tape = Tape(tensors, whole=True)
        with torch.no_grad(), dispatch.noting(tape):
            results = way(tensors)
        if tape.own is not None:
            dispatch.keep(key, tape.own)
            return results
    made = Differentiated(rule, run, kept=True)
    made.begin(tape, results)
    results = made.call(*tensors)
    dispatch.keep(key, made)
    return results
