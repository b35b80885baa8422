"""`swap`: a model's modules of torch's become this library's, in place."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tilefold.errors import KindError, shown
from tilefold.functional.arguments import as_number
from tilefold.nn.layers import CrossEntropyLoss
from tilefold.nn.rows import GroupNorm, LayerNorm, LogSoftmax, RMSNorm, Softmax
from tilefold.runtime.modes import as_given, outside_modes

# Torch's modules, and what each becomes.
KINDS: dict[type[torch.nn.Module], type[torch.nn.Module]] = {
    torch.nn.Softmax: Softmax,
    torch.nn.LogSoftmax: LogSoftmax,
    torch.nn.LayerNorm: LayerNorm,
    torch.nn.RMSNorm: RMSNorm,
    torch.nn.GroupNorm: GroupNorm,
    torch.nn.CrossEntropyLoss: CrossEntropyLoss,
}
EPSILONS = ("variance_epsilon", "eps")
GUARANTEE = {"guarantee": "run_to_run"}  # which torch's modules do not have
OWN_FORWARD = "the object has a forward of its own"


@dataclass(frozen=True)
class Line:
    """One module: its name in the model, what it was, what it became (None: it was left) and why it was left."""

    name: str
    was: str
    became: str | None = None
    reason: str = ""


@dataclass(frozen=True)
class Swapped:
    """What `swap` did: a line for each place of a module that it replaced, or looked at and left. `str` gives a table."""

    lines: tuple[Line, ...]

    @property
    def swapped(self) -> tuple[Line, ...]:
        """The places whose module was replaced."""
        return tuple(line for line in self.lines if line.became is not None)

    @property
    def left(self) -> tuple[Line, ...]:
        """The places whose module was left."""
        return tuple(line for line in self.lines if line.became is None)

    def __str__(self) -> str:
        rows = [("module", "was", "is")]
        rows += [(n.name or "(the model)", n.was, n.became or f"left: {n.reason}") for n in self.lines]
        wide = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:2]]
        table = [f"{name:{wide[0]}}  {was:{wide[1]}}  {now}" for name, was, now in rows] if self.lines else []
        return "\n".join([*table, f"{len(self.swapped)} swapped, {len(self.left)} left"])


def swap(model: torch.nn.Module) -> Swapped:
    """Make a model's softmax, norms and losses those of `tilefold.nn`, in place.

    Replaced are torch.nn's Softmax, LogSoftmax, LayerNorm, RMSNorm, GroupNorm and CrossEntropyLoss, and other classes of an
    RMSNorm, as Hugging Face's models have: with one parameter, a `weight` of one dim, a number `variance_epsilon` or `eps`,
    and a forward of one tensor whose result and gradients, on a probe of random rows and weights, are those of
    `tilefold.rms_norm`. A class whose weight counts from 0 (Gemma's) fails the probe and is left.

    A replaced module stays the same object and changes its class. So its parameters (which optimisers hold), buffers, hooks,
    attributes, training mode, device and dtype stay, and so does every reference to it: in another module, in a list, in a
    wrapper. State dicts have the names that they had. Subclasses and parametrized modules are left: only exact classes are
    known. Calls of torch.nn.functional inside of a model's own forward are not modules and stay as they are.

    A norm of another class gives results in its input's dtype, also where its weight is of a wider one.

    Args:
        model: any module; a DistributedDataParallel, too.

    Returns:
        A report with `lines`, `swapped` and `left`, whose `str` is a table: each place of a module that was replaced, or that
        is near to one and was left, with the reason. A module at two places has two lines.

    Raises:
        KindError: `model` is no module.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.Softmax(dim=1))
        >>> print(tilefold.nn.swap(model))
        module  was                 is
        1       torch.nn.LayerNorm  tilefold.nn.LayerNorm
        2       torch.nn.Softmax    tilefold.nn.Softmax
        2 swapped, 0 left
    """
    if not isinstance(model, torch.nn.Module):
        raise KindError(f"swap: `model` must be a torch.nn.Module, got {shown(model)}; pass the model itself")
    places = list(model.named_modules(remove_duplicate=False))
    verdicts = {id(module): _verdict(module) for _, module in places}
    for module in model.modules():
        verdict = verdicts[id(module)]
        if verdict.becomes is not None:
            vars(module).update(verdict.attributes)
            module.__class__ = verdict.becomes
    return Swapped(
        tuple(_line(name, verdicts[id(module)]) for name, module in places if verdicts[id(module)].counts)
    )


@dataclass(frozen=True)
class Verdict:
    """What a module is, and what it becomes with which attributes, or why it is left. Of others neither."""

    was: str
    becomes: type[torch.nn.Module] | None = None
    reason: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def counts(self) -> bool:
        """Whether the module is told of."""
        return self.becomes is not None or bool(self.reason)


def _line(name: str, verdict: Verdict) -> Line:
    became = None if verdict.becomes is None else f"tilefold.nn.{verdict.becomes.__name__}"
    return Line(name, verdict.was, became, verdict.reason)


def _verdict(module: Any) -> Verdict:
    kind = type(module)
    if isinstance(module, tuple(KINDS.values())):
        return Verdict(kind.__name__)
    known = next((base for base in KINDS if isinstance(module, base)), None)
    if known is None:
        return _verdict_on_norm(module)
    if torch.nn.utils.parametrize.is_parametrized(module):
        return Verdict(kind.__name__, reason="it is parametrized")
    if kind is not known:
        return Verdict(kind.__name__, reason=f"a subclass of torch.nn.{known.__name__}")
    was = f"torch.nn.{kind.__name__}"
    if "forward" in vars(module):
        return Verdict(was, reason=OWN_FORWARD)
    if known in (torch.nn.Softmax, torch.nn.LogSoftmax) and module.dim is None:
        return Verdict(was, reason="it has no dim")
    options: dict[str, Any] = vars(CrossEntropyLoss()) if known is torch.nn.CrossEntropyLoss else GUARANTEE
    return Verdict(was, KINDS[known], attributes={n: v for n, v in options.items() if n not in vars(module)})


def _verdict_on_norm(module: torch.nn.Module) -> Verdict:
    """Of a module of no known class, which may be an RMSNorm."""
    kind = type(module)
    named = "rmsnorm" in kind.__name__.lower()
    values = [vars(module).get(name, getattr(kind, name, None)) for name in EPSILONS]
    epsilons = [number for value in values if (number := as_number(value)) is not None]
    parameters = dict(module.named_parameters())
    if not epsilons or list(parameters) != ["weight"] or parameters["weight"].ndim != 1:
        reason = "it has not a weight of one dim alone and an epsilon" if named else ""
        return Verdict(kind.__name__, reason=reason)
    if "forward" in vars(module):
        return Verdict(kind.__name__, reason=OWN_FORWARD)
    if [*module.children(), *module.buffers()]:
        return Verdict(kind.__name__, reason="it has modules or buffers")
    if not _takes_one_tensor(kind.forward):
        return Verdict(kind.__name__, reason="its forward takes more than one tensor")
    weight = parameters["weight"]
    reasons = [_difference(module, weight, eps) for eps in epsilons]
    if all(reasons):
        return Verdict(kind.__name__, reason=reasons[0])
    own = {
        "normalized_shape": tuple(weight.shape),
        "eps": epsilons[reasons.index("")],
        "elementwise_affine": True,
        **GUARANTEE,
    }
    return Verdict(kind.__name__, RMSNorm, attributes=own)


def _takes_one_tensor(forward: Callable[..., Any]) -> bool:
    _, *taken = inspect.signature(forward).parameters.values()
    return len(taken) == 1 and taken[0].kind in (taken[0].POSITIONAL_ONLY, taken[0].POSITIONAL_OR_KEYWORD)


def _difference(module: torch.nn.Module, weight: Tensor, eps: float) -> str:
    """How a module differs from `rms_norm` of the epsilon, by a probe; nothing where it does not.

    Its forward runs on a copy with a random weight, in training and not: in float32, and in the weight's own dtype, where
    only the result's dtype counts. Rows have a mean, and the sizes 1, 1000 and that of the epsilon's root. No hook runs.
    """
    device = torch.device("cpu") if weight.is_meta else weight.device
    with (
        outside_modes(),
        as_given(device),
        torch.enable_grad(),
        torch.random.fork_rng([device] * weight.is_cuda),
    ):
        for dtype, training in itertools.product(dict.fromkeys((torch.float32, weight.dtype)), (True, False)):
            given = [t.to(device, dtype).requires_grad_() for t in _drawn(len(weight), eps)]
            try:
                made = _run(module, training, *given)
            except Exception as error:  # of the module's own code
                return f"its forward fails on a probe ({type(error).__name__})"
            if made[0].dtype != dtype or made[0].shape != given[0].shape:
                return "its result has another dtype or shape than its input"
            if dtype == torch.float32 and not _is_near(made, eps, *given):
                return "its result or gradient on a probe is not that of rms_norm"
    return ""


def _drawn(length: int, eps: float) -> list[Tensor]:
    """Rows, a weight and a cotangent."""
    drawn = torch.Generator().manual_seed(0)
    sizes = torch.tensor([1.0, 1000.0, max(eps, 1e-20) ** 0.5], dtype=torch.float32).view(3, 1, 1)
    shapes = (3, 2, length), (length,), (3, 2, length)
    x, weight, cotangent = (torch.randn(s, generator=drawn, dtype=torch.float32) for s in shapes)
    return [(x + 0.5) * sizes, weight, cotangent]


def _run(
    module: torch.nn.Module, training: bool, x: Tensor, weight: Tensor, cotangent: Tensor
) -> list[Tensor]:
    """The result and the gradients of a copy of the module with another weight."""
    kind = type(module)
    probe = kind.__new__(kind)
    own = torch.nn.Parameter(weight.detach())
    vars(probe).update(vars(module), _parameters={"weight": own}, training=training)
    y: Tensor = kind.forward(probe, x)
    return [y, *torch.autograd.grad(y, (x, own), cotangent.to(y.dtype), materialize_grads=True)]


def _is_near(made: list[Tensor], eps: float, x: Tensor, weight: Tensor, cotangent: Tensor) -> bool:
    """Whether result and gradients are those of the definition in float64, up to float32's rounding of their terms."""
    x, weight, cotangent = (t.detach().double().requires_grad_() for t in (x, weight, cotangent))
    root = (x.square().mean(-1, keepdim=True) + eps).rsqrt()
    y, along = x * root * weight, cotangent * weight
    wanted = [y, *torch.autograd.grad(y, (x, weight), cotangent)]
    spread = (x * root).abs() * along.square().mean(-1, keepdim=True).sqrt()
    terms = [y, (along.abs() + spread) * root, (cotangent * x * root).abs().sum((0, 1))]
    allowed = 32 * torch.finfo(torch.float32).eps
    return all(
        bool(((got - want).abs() <= allowed * term.abs()).all())
        for got, want, term in zip(made, wanted, terms, strict=True)
    )
