"""Cross-entropy of rows of logits: a fold of each row, the target's logit, and a fold of what the rows lose.

Of a row, with c = softcap tanh(x / softcap) or x, the largest c, m, and s = log(sum of exp(c - m)):

    loss = sum over classes of a (m + s - c) + z_loss (m + s)^2

where `a` is how much of the target each class has: of an index one, smoothed. So the fold gives m, s, and where all classes
have a share the sums of a and a c. A row of a class index alone reads the target's logit by its address.

Backward is one function of each logit and its row's values, read once and written once:

    dx = (p sum(a) + ... - a) g,   p = exp(c - m - s)

It leaves out the one class of a target, whose element is computed of its row's values and stored afterwards.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from tilefold import math, monoids
from tilefold.algebra.derivatives.folds import project_as
from tilefold.algebra.expression import trace
from tilefold.algebra.monoid import Monoid
from tilefold.algebra.typing import compute_dtype
from tilefold.api import dispatch
from tilefold.api import reduce as folds
from tilefold.api.chosen import map_chosen, put_chosen
from tilefold.api.differentiated import Call
from tilefold.api.ends import function_of
from tilefold.api.recorded import DIFFERENTIATED, OPERATIONS, is_differentiated, is_plainly_differentiated
from tilefold.errors import ArgumentError, KindError, TargetError, shown
from tilefold.planner.problem.canonical import whole_number
from tilefold.planner.problem.validate import is_abstract
from tilefold.runtime.caching import kept_outside_modes
from tilefold.runtime.modes import is_seen

NAN, INFINITY = float("nan"), float("inf")
Values = dict[str, Any]


def _projections(shows_lse: bool) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A row's values from its state, and a function that has their derivatives."""

    def project(largest: Any, total: Any, *sums: Any) -> Any:
        logarithm = math.where(abs(largest) == INFINITY, NAN, math.log(total))
        lse = math.where(abs(largest) == INFINITY, largest, largest + logarithm)
        return largest, logarithm, *sums, *(lse,) * shows_lse

    def slopes(largest: Any, total: Any, *sums: Any) -> Any:
        lse = largest + math.log(total)
        return 0.0, lse, *sums, *(lse,) * shows_lse

    return project, slopes


# Here, since a saved graph is differentiated in a process in which no loss was called.
for _fields, _shows_lse in itertools.product(range(2, 5), (False, True)):
    project_as(*(trace(f, _fields) for f in _projections(_shows_lse)))


@dataclass(frozen=True)
class Loss(Call):
    """A cross-entropy of logits, targets and, where they are `weighted`, the classes' weights.

    Classes lie along `dim`. The losses of the first `members` dims are reduced apart. `dtype` is the loss's.
    """

    dim: int
    members: int
    reduction: str
    ignore_index: int
    label_smoothing: float
    z_loss: float
    softcap: float | None
    probabilities: bool
    weighted: bool
    shows_lse: bool
    validate: bool
    dtype: torch.dtype
    guarantee: str
    in_place: bool = False

    call = "cross_entropy"
    fills = False  # a cotangent that nobody asked for comes as None
    kept: ClassVar[tuple[str, ...]] = (
        "largest",
        "logarithm",
        "share",
        "total",
        "logit",
        "counts",
        "weight",
    )  # of the results, what backward reads

    @property
    def shares(self) -> bool:
        """Whether every class has a share of the target."""
        return self.probabilities or self.label_smoothing > 0

    @property
    def varies(self) -> bool:
        """Whether these shares are not the same for all classes."""
        return self.probabilities or (self.shares and self.weighted)

    @functools.cached_property
    def results(self) -> tuple[str, ...]:
        """What the forward call makes: the caller's first."""
        lse, share = ("lse",) * self.shows_lse, ("share",) * self.varies
        total = ("total",) * (self.reduction == "mean")
        return ("loss", *lse, "largest", "logarithm", *share, *total, *self.owned)

    @property
    def owned(self) -> tuple[str, ...]:
        """Values of a row's target among the results: its logit, whether it counts, its weight."""
        return () if self.probabilities else ("logit", "counts", *("weight",) * self.weighted)

    def read(self, made: list[Tensor]) -> list[Tensor]:
        """The loss, and rows' log-sum-exp where it is shown."""
        return made[: 1 + self.shows_lse]

    def classes_of(self, x: Tensor) -> int:
        """How many classes there are."""
        return int(x.shape[self.dim])

    def moves(self, result: int, tensors: Sequence[Tensor]) -> bool:
        """Whether a result changes with an element; the largest one counts as a constant, which the logarithm answers for."""
        name = self.results[result]
        return name in ("loss", "lse", "logarithm", "logit") or (name == "share" and self.probabilities)

    # ------------------------------------------------------------------------------------------------------- functions

    def _capped(self, x: Any) -> Any:
        return x if self.softcap is None else math.tanh(x * (1.0 / self.softcap)) * self.softcap

    def _through_cap(self, x: Any, g: Any) -> Any:
        """The cotangent of a logit, of that of what the cap makes of it."""
        if self.softcap is None:
            return g
        bent = math.tanh(x * (1.0 / self.softcap))
        return g * (1.0 - bent * bent)

    def _share(self, classes: int, beside: Sequence[Any]) -> Any:
        """How much of the target a class has, besides that of an index: of its probability and weight, where these are."""
        if not self.shares:
            return 0.0
        given, kept = iter(beside), 1.0 - self.label_smoothing
        share = self.label_smoothing / classes
        if self.probabilities:
            share = next(given) * kept + share if self.label_smoothing else next(given)
        return next(given) * share if self.weighted else share

    @kept_outside_modes(256)
    def of_rows(self, classes: int) -> Monoid:
        """The fold of a row's logits, and of what is beside them: largest, logarithm, the sums of shares, lse.

        Where it is differentiated, the logarithm answers for the largest logit, too.
        """
        fields = ("max", "sum", *("share",) * self.varies, *("first",) * self.shares)

        def lift(x: Any, *beside: Any) -> Any:
            c, share = self._capped(x) * 1.0, self._share(classes, beside)
            return c, 1.0, *(share,) * self.varies, *(share * c,) * self.shares

        def combine(a: Any, b: Any) -> Any:
            return *monoids.logsumexp_combine(a, b), *(getattr(a, f) + getattr(b, f) for f in fields[2:])

        def absorb(state: Any, x: Any, *beside: Any) -> Any:
            c, share = self._capped(x), self._share(classes, beside)
            sums = (share,) * self.varies + (share * c,) * self.shares
            more = (getattr(state, f) + math.block_sum(s) for f, s in zip(fields[2:], sums, strict=True))
            return *monoids.logsumexp_absorb(state, c), *more

        return Monoid(
            combine,
            (-INFINITY, *(0,) * (len(fields) - 1)),
            fields=fields,
            lift=_taking(1 + self._beside, lift),
            project=_projections(self.shows_lse)[0],
            absorb=absorb,
            commutative=True,
            check=False,
            name=self.call,
        )

    @property
    def beside_rows(self) -> tuple[str, ...]:
        """A row's values: of its fold, of its target, of that one's weight."""
        sums = ("share",) * self.varies + ("first",) * self.shares
        own = () if self.probabilities else ("target", "logit", *("weight",) * self.weighted)
        return ("largest", "logarithm", *sums, *own)

    def _parts(self, v: Values) -> tuple[Any, Any]:
        """The share of the target's own class, and the sum of all others'."""
        own = 0.0 if self.probabilities else v.get("weight", 1.0) * (1.0 - self.label_smoothing)
        return own, v.get("share", self.label_smoothing if self.shares else 0.0)

    def _counts(self, target: Any, classes: int) -> Any:
        """1 where a row counts, 0 where its target is ignored, NaN where it is no class."""
        inside = (target >= 0) & (target < classes)
        return math.where(target == self.ignore_index, 0.0, math.where(inside, 1.0, NAN))

    def _counted(self, v: Values, classes: int, value: Any) -> Any:
        """A row's value as often as it counts."""
        if "counts" not in v and "target" not in v:
            return value
        counts = v["counts"] if "counts" in v else self._counts(v["target"], classes)
        return math.where(counts == 0, 0.0, value * counts)

    def _lost(self, v: Values, classes: int) -> Any:
        """A row's loss."""
        own, share = self._parts(v)
        lost: Any = 0.0
        if not self.probabilities:
            lost = own * ((v["largest"] - self._capped(v["logit"])) + v["logarithm"])
        if self.shares:
            lost = lost + (share * v["logarithm"] + (share * v["largest"] - v["first"]))
        if self.z_loss:
            lse = v["largest"] + v["logarithm"]
            lost = lost + lse * lse * self.z_loss
        return self._counted(v, classes, lost)

    @kept_outside_modes(256)
    def of_each(
        self, names: tuple[str, ...], classes: int, wide: torch.dtype, shown: tuple[str, ...]
    ) -> Monoid:
        """(a row's values) -> its loss, and those of its target's values that are `shown`, which are `wide`."""

        def run(*values: Any) -> tuple[Any, ...]:
            v = dict(zip(names, values, strict=True))
            v["counts"] = self._counts(v["target"], classes)
            return self._lost(v, classes) * 1.0, *(v[name] for name in shown)

        return function_of(trace(run, len(names)), ("compute", *(wide,) * len(shown)))

    @kept_outside_modes(256)
    def of_losses(self, names: tuple[str, ...], classes: int, wide: torch.dtype) -> Monoid:
        """The fold of the rows' values, or of their losses and weights: the loss, and of a mean the weights' `wide` sum."""
        mean = self.reduction == "mean"

        def lift(*values: Any) -> Any:
            v = dict(zip(names, values, strict=True))
            lost = v["loss"] if "loss" in v else self._lost(v, classes)
            return lost * 1.0, self._counted(v, classes, v.get("weight", 1.0)) * 1.0

        if self.reduction == "none":
            return function_of(trace(lambda *v: lift(*v)[0], len(names)))

        return Monoid(
            lambda a, b: (a.loss + b.loss, a.weight + b.weight),
            (0, 0),
            fields=("loss", "weight"),
            dtypes=("compute", wide),
            lift=_taking(len(names), lift),
            project=(lambda loss, weight: (loss / weight, weight)) if mean else (lambda loss, weight: loss),
            commutative=True,
            check=False,
            name="losses",
        )

    def _factors(self, v: Values, classes: int) -> tuple[Any, Any]:
        """Of a row's values and cotangents the factor of p, and its loss's cotangent."""
        g = v.get("of_loss", 0.0)
        if "of_loss" in v:
            g = self._counted(v, classes, g / v["total"] if "total" in v else g)
        slope = sum(self._parts(v))
        if self.z_loss:
            slope = slope + (v["largest"] + v["logarithm"]) * (2.0 * self.z_loss)
        return sum((v[name] for name in ("of_lse", "of_logarithm") if name in v), g * slope), g

    @kept_outside_modes(256)
    def of_own(self, names: tuple[str, ...], classes: int) -> Monoid:
        """(a row's values and cotangents, its target) -> the element of its target's class."""

        def run(*values: Any) -> Any:
            v = dict(zip((*names, "target"), values, strict=True))
            factor, g = self._factors(v, classes)
            p = math.exp((self._capped(v["logit"]) - v["largest"]) - v["logarithm"])
            share = self._parts(v)[0] + self._share(classes, [v["weight"]] if self.weighted else [])
            return self._through_cap(v["logit"], p * factor - g * share) + v.get("of_logit", 0.0)

        return function_of(trace(run, len(names) + 1))

    @kept_outside_modes(256)
    def of_logits(self, names: tuple[str, ...], classes: int) -> Monoid:
        """(a logit, what is beside it, its row's values) -> its cotangent, the target's own share left out."""
        k = self._beside

        def run(x: Any, *values: Any) -> Any:
            v = dict(zip(names, values[k:], strict=True))
            factor, g = self._factors(v, classes)
            made = math.exp((self._capped(x) - v["largest"]) - v["logarithm"]) * factor
            if self.shares:
                made = made - g * self._share(classes, values[:k])
            return self._through_cap(x, made)

        return function_of(trace(run, 1 + k + len(names)))

    @kept_outside_modes(256)
    def of_probabilities(self, names: tuple[str, ...], classes: int) -> Monoid:
        """(a logit, its class's weight, its row's values) -> the probability's cotangent."""

        def run(x: Any, *values: Any) -> Any:
            v = dict(zip(names, values[self.weighted :], strict=True))
            made = v.get("of_share", 0.0)
            if "of_loss" in v:
                made = (
                    self._factors(v, classes)[1] * ((v["largest"] - self._capped(x)) + v["logarithm"]) + made
                )
            return made * (values[0] if self.weighted else 1.0) * (1.0 - self.label_smoothing)

        return function_of(trace(run, 1 + self.weighted + len(names)))

    @property
    def _beside(self) -> int:
        """How many tensors a row's fold takes beside the logits."""
        return self.probabilities + (self.shares and self.weighted)

    # --------------------------------------------------------------------------------------------------------- calls

    def _each(
        self, function: Monoid, tensors: Sequence[Tensor], dtype: torch.dtype, out: Any = None
    ) -> list[Tensor]:
        """A function of elements, computed of each."""
        return folds.fold_tensors(
            tensors, function, (), False, dtype=dtype, guarantee=self.guarantee, call=self.call, out=out
        )

    def alike(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors with as many dims each, as they broadcast."""
        x, target, *weight = tensors
        if target.ndim < x.ndim:
            target = target.unsqueeze(self.dim)
        after = x.ndim - 1 - self.dim
        return [x, target, *(w.reshape(*w.shape, *[1] * after) if w.ndim == 1 else w for w in weight)]

    def folded(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """What a row's fold takes: the logits, and of their shape what is beside them."""
        x, target, *weight = tensors
        found = [*([target] if self.probabilities else []), *(weight if self.shares else [])]
        return [x, *(t.expand(x.shape) for t in found)]

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The results.

        Raises:
            TargetError: a target that is looked at is no class.
        """
        tensors = self.alike(tensors)
        x, classes = tensors[0], self.classes_of(tensors[0])
        made = self.named(
            self._folded(self.folded(tensors), self.of_rows(classes), self.dim, True, compute_dtype(x.dtype))
        )
        if not self.probabilities:
            self.check_targets(tensors[1], classes)
        return self.reduced(made, tensors)

    def named(self, rows: Sequence[Tensor]) -> Values:
        """What `of_rows` makes, by name."""
        return dict(zip((*self.beside_rows[: 2 + self.varies + self.shares], "lse"), rows, strict=False))

    def reduced(self, made: Values, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The results, of all values of rows' folds."""
        x, each, wide = tensors[0], self.reduction == "none", compute_dtype(tensors[0].dtype)
        values = {name: t for name, t in made.items() if name != "lse"}
        if not self.probabilities:
            made |= self._of_targets(values, tensors)
            weights = ("counts", *("weight",) * self.weighted) if self.reduction == "mean" else ()
            values = {name: made[name] for name in ("loss", *weights)}
        if self.probabilities or not each:
            over = () if each else tuple(range(self.members, x.ndim))
            fold = self.of_losses((*values,), self.classes_of(x), wide)
            found = self._folded([*values.values()], fold, over, False, self.dtype)
            made |= dict(zip(("loss", "total"), found, strict=False))
        if each:
            made["loss"] = made["loss"].squeeze(self.dim)
        return [made[name] for name in self.results]

    def _of_targets(self, made: Values, tensors: Sequence[Tensor]) -> Values:
        """The rows' losses, and what of their targets' values is not made yet: logits and weights are read."""
        x, target, *weight = tensors
        read = {"logit": x, **dict(zip(["weight"], weight, strict=False))}
        read = {name: t.expand(x.shape) for name, t in read.items() if name not in made}
        shown, wide = tuple(name for name in self.owned if name not in made), compute_dtype(x.dtype)
        function = self.of_each((*made, "target", *read), self.classes_of(x), wide, shown)
        found = map_chosen(
            function, [*made.values()], target, [*read.values()], self.dim,
            dtype=self.dtype if self.reduction == "none" else wide, guarantee=self.guarantee, call=self.call,
        )  # fmt: skip
        return dict(zip(("loss", *shown), found, strict=True))

    def _folded(
        self, tensors: Sequence[Tensor], monoid: Monoid, dims: Any, keepdim: bool, dtype: torch.dtype
    ) -> list[Tensor]:
        return folds.fold_tensors(
            tensors, monoid, dims, keepdim, dtype=dtype, guarantee=self.guarantee, call=self.call
        )

    def check_targets(self, target: Tensor, classes: int) -> None:
        """`check_targets` of this loss."""
        check_targets(target, classes, self.ignore_index, self.validate, self.call)

    def unwritten(self, x: Tensor) -> list[Tensor]:
        """Memory of the results' shapes and dtypes."""
        rows = [1 if d == self.dim else n for d, n in enumerate(x.shape)]
        each = [n for d, n in enumerate(x.shape) if d != self.dim]
        members, wide = rows[: self.members], compute_dtype(x.dtype)
        sizes = {"loss": each if self.reduction == "none" else members, "total": members}
        return [
            x.new_empty(sizes.get(name, rows), dtype=self.dtype if name == "loss" else wide)
            for name in self.results
        ]

    def saved(
        self, tensors: Sequence[Tensor], made: Sequence[Tensor], wrt: Sequence[int]
    ) -> Sequence[Tensor]:
        """The inputs, and what the results have of rows."""
        return [*tensors, *(t for name, t in zip(self.results, made, strict=True) if name in self.kept)]

    def backward(self, saved: Sequence[Tensor], grads: Sequence[Any], wrt: Sequence[int]) -> list[Any]:
        """The cotangents of the logits and of the targets' probabilities."""
        count = 2 + self.weighted
        x, target, *weight = tensors = self.alike(saved[:count])
        names = [name for name in self.results if name not in ("loss", "lse")]
        made: Values = dict(zip(names, saved[count:], strict=True))
        found: list[Any] = [None] * count
        rows = made["largest"].shape
        given = {name: g for name, g in zip(self.results, grads, strict=True) if g is not None}
        if not given:
            return found
        if "loss" in given:
            made["of_loss"] = self._of_rows(given["loss"], rows)
            if "total" in made:
                made["total"] = self._of_rows(made["total"], rows)
        else:
            made.pop("total", None)
        cotangents = ("lse", "logarithm", "logit", "share")
        made |= {f"of_{name}": g for name, g in given.items() if name in cotangents}
        classes, beside = self.classes_of(x), self.folded(tensors)[1:]
        if 1 in wrt:
            function = self.of_probabilities((*made,), classes)
            each = [t.expand(x.shape) for t in (x, *weight, *made.values())]
            (found[1],) = self._each(function, each, target.dtype)
        if 0 in wrt:
            taken = tuple(name for name in made if name not in ("logit", "of_logit", "of_share"))
            each = [x, *beside, *(made[name].expand(x.shape) for name in taken)]
            out = x.detach() if self.in_place else None
            (of_x,) = self._each(self.of_logits(taken, classes), each, x.dtype, out)
            if not self.probabilities:
                of_x = self.with_targets(of_x, target, self.of_own((*made,), classes), [*made.values()])
            found[0] = of_x
        return found

    def _of_rows(self, g: Tensor, rows: Sequence[int]) -> Tensor:
        """A cotangent of the loss, or the weights' sum, as one value a row."""
        if self.reduction == "none":
            return g.unsqueeze(self.dim)
        return g.reshape(*g.shape, *[1] * (len(rows) - g.ndim)).expand(rows)

    def with_targets(self, of_x: Tensor, target: Tensor, own: Monoid, values: Sequence[Tensor]) -> Tensor:
        """The logits' cotangents with those of the targets' own classes, functions of rows' values."""
        return put_chosen(of_x, own, values, target, self.dim, guarantee=self.guarantee, call=self.call)


def check_targets(target: Tensor, classes: int, ignore_index: int, validate: bool, call: str) -> None:
    """Refuse targets that are no classes, where they are looked at: on a CPU, and elsewhere to `validate`.

    Raises:
        TargetError: there are some.
    """

    def checked(target: Tensor) -> list[Tensor]:
        if not is_abstract(target):
            wrong = target[((target < 0) | (target >= classes)) & (target != ignore_index)]
            if wrong.numel():
                raise TargetError(
                    f"{call}: targets must be classes in [0, {classes - 1}] or `ignore_index` {ignore_index}, got "
                    f"{wrong[0].item()} (Target is out of bounds); mask it with `ignore_index`"
                )
        return []

    if validate or target.device.type == "cpu":
        dispatch.noted(checked, target)


def as_index(call: str, ignore_index: Any) -> int:
    """The target of rows that are left out.

    Raises:
        ArgumentError, KindError: it is none.
    """
    index = whole_number(ignore_index)
    if index is None:
        raise KindError(
            f"{call}: `ignore_index` must be an int, got {shown(ignore_index)}; write a whole number"
        )
    if not -(2**63) <= index < 2**63:
        raise ArgumentError(
            f"{call}: `ignore_index` must be an int of 64 bits, got {shown(index)}; write a smaller number"
        )
    return index


def _taking(count: int, function: Any) -> Any:
    """The function, which says that it takes so many values."""
    taken = [inspect.Parameter(f"x{i}", inspect.Parameter.POSITIONAL_ONLY) for i in range(count)]
    function.__signature__ = inspect.Signature(taken)
    return function


def loss_tensors(tensors: Sequence[Tensor], loss: Loss, key: Any) -> list[Tensor]:
    """The results of a cross-entropy of validated tensors: those that `Loss.results` names."""
    compiles = is_dynamo_compiling()
    if not compiles and is_plainly_differentiated(tensors):
        return DIFFERENTIATED["cross_entropy"](tensors, loss, key)
    if compiles or is_seen(tensors) or is_differentiated(tensors):
        return recorded_loss(tensors, loss)
    return dispatch.replayed(key, loss.run, tensors)


def recorded_loss(tensors: Sequence[Tensor], loss: Loss) -> list[Tensor]:
    """The call as one operation."""
    made: list[Tensor] = OPERATIONS.cross_entropy(
        loss.alike(tensors), *(getattr(loss, name) for name in ARGUMENTS)
    )
    return made


ARGUMENTS: tuple[str, ...] = tuple(field.name for field in fields(Loss))[:-1]
# The same as torch's schemas of operations have them.
SCHEMA = (
    "int dim, int members, str reduction, int ignore_index, float label_smoothing, float z_loss, float? softcap, "
    "bool probabilities, bool weighted, bool shows_lse, bool validate, ScalarType dtype, str guarantee"
)
