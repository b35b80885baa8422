"""What the library does with a call, written down so that two versions can be compared: plans, kernels, answers.

    PYTHONPATH=src python benchmarks/recording.py record BEFORE.jsonl --count 3000 --seed 1
    PYTHONPATH=src python benchmarks/recording.py compare BEFORE.jsonl AFTER.jsonl
    PYTHONPATH=src python benchmarks/recording.py plans tests/planner/plans.txt

A line a call, of drawn ones and of every case that the suites of `tilefold bench` list: a hash of its plan for an H200, a
hash of every launch (generated source, its kernel's source, arguments, constants, grid, warps), and of drawn ones a hash of
the answers' bits on a CPU where the tensors are small enough. Of the first `--ptx` such calls (300) that launch kernels the
line has a hash of the results' bits too, every launch compiled and executed from its PTX; with `--beside OTHER.jsonl` also of
every call whose launches are not those of the other recording. Draws use public names alone, so that modules may move between
two recordings; what is imported of other modules stands in the last lines of the imports.

`plans` writes the plans of drawn calls alone, one a line: a test holds the planner to them, so that no plan changes unseen.
Who means to change some writes them anew, reads what became of them in the diff, and times it.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import inspect
import json
import math
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import tilefold
from tilefold import math as tm
from tilefold import monoids
from tilefold.api import dispatch
from tilefold.api.dispatch import lowered
from tilefold.api.requests import Reduction, Scan
from tilefold.backends.triton.lower import calls_of
from tilefold.bench.suites import load_suite, suite_names
from tilefold.errors import TilefoldError
from tilefold.planner.chips import NAMED
from tilefold.planner.cpu import cpu_plan, cpu_problem
from tilefold.planner.cpu_scans import cpu_scan
from tilefold.planner.device import H200, Device, of_chip
from tilefold.planner.least_time import with_least_time
from tilefold.planner.plan import Plan
from tilefold.runtime.switch import ExplainedError, explaining

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
SMALL, LARGE = 1 << 15, 1 << 28  # elements: answered on a CPU as well; planned alone
BACKWARD = 1 << 22  # elements, which have memory here
PLANS, PLANS_SEED = 600, 77
LIMITS = Path(__file__).with_name("limits.json")
CHIPS = ("h200", "h200", "a100", "b200")  # of the calls near to limits, in turn
SHOWN = 8  # calls of each kind of difference

FOLDS = ("sum", "prod", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "aminmax", "any", "all", "count_nonzero",
         "var", "std", "var_mean", "std_mean", "logsumexp", "vector_norm", "bitwise_or", "bitwise_xor")  # fmt: skip
FLOATING = ("mean", "var", "std", "var_mean", "std_mean", "logsumexp", "vector_norm")
ONE_DIM = ("max", "min", "argmax", "argmin", "aminmax")
CATALOGUE = ("SUM", "LOGSUMEXP", "WELFORD", "DESCRIBE", "ARGMAX", "SUM_COMPENSATED")
MAPS = ("softmax", "log_softmax", "layer_norm", "rms_norm", "normalize", "group_norm")
SCANS = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")
OTHERS = ("affine", "segment", "topk", "transpose", "matmul", "scan", "map", "reduce")
DIFFERENTIATED = ("sum", "prod", "mean", "amax", "max", "var", "std", "logsumexp", "vector_norm", *MAPS * 3, *SCANS,
                  "affine", "segment", "topk", "transpose", "matmul", "map")  # fmt: skip
NAMES = (*FOLDS, *MAPS * 3, *SCANS * 2, *OTHERS * 3)


def _softmax_pair() -> Any:
    def combine(a: Any, b: Any) -> Any:
        m = tm.maximum(a.m, b.m)
        safe = tm.where(m == -math.inf, 0.0, m)
        return m, a.l * tm.exp(a.m - safe) + b.l * tm.exp(b.m - safe)

    return tilefold.Monoid(
        combine,
        identity=(-math.inf, 0),
        fields=("m", "l"),
        lift=lambda x: (x, 1.0),
        project=lambda m, l: m + tm.log(l),
    )


def _last_one() -> Any:
    return tilefold.Monoid(
        lambda a, b: (tm.where(b.seen, b.x, a.x), a.seen | b.seen),
        identity=(0, False),
        fields=("x", "seen"),
        dtypes=("input", torch.bool),
        lift=lambda x: (x, x != 0),
        project=lambda x, seen: x,
    )


def drawn(seed: int, number: int) -> tuple[str, Callable[[], Any], bool]:
    """The text of a call, the call on tensors that it makes, and whether it is small enough to be answered."""
    rng = random.Random(f"recording {seed} {number}")
    name = rng.choice(NAMES)
    small = rng.random() < 0.5
    rank = rng.choice((1, 2, 2, 2, 3, 3, 4))
    return _drawn(rng, name, _shape(rng, rank, SMALL if small else LARGE), small)


def _drawn(
    rng: random.Random, name: str, shape: tuple[int, ...], small: bool
) -> tuple[str, Callable[[], Any], bool]:
    """A call of this operation on tensors of this shape."""
    rank = len(shape)
    dtype = rng.choice(
        FLOATS if name in (*FLOATING, *MAPS, "logcumsumexp", "affine", "map") else (*FLOATS, *FLOATS, *WHOLE)
    )
    if name.startswith("bitwise"):
        dtype = rng.choice(WHOLE)
    order = rng.sample(range(rank), rank) if rng.random() < 0.25 else list(range(rank))
    step, skip = rng.choice((1, 1, 1, 1, 1, 2)), rng.choice((0, 0, 0, 1, 3))
    build = rng.randrange(1 << 30)
    guarantee = rng.choice(("run_to_run",) * 5 + ("batch_invariant",))
    dim, several = rng.randrange(rank), sorted(rng.sample(range(rank), rng.randint(1, rank)))
    tensor = _maker(shape, dtype, order, step, skip, build, small)
    options, text = _options(name, rng, shape, dim, several, guarantee)
    layout = f"order {order} step {step} skip {skip}"
    said = f"{name} {'x'.join(map(str, shape))} {str(dtype)[6:]} {layout} {text} {guarantee}"
    return said, lambda: options(tensor), small


def _shape(rng: random.Random, rank: int, most: int) -> tuple[int, ...]:
    total = math.exp(rng.uniform(math.log(16), math.log(most)))
    cuts = sorted(rng.random() for _ in range(rank - 1))
    shares = [b - a for a, b in zip([0.0, *cuts], [*cuts, 1.0], strict=True)]
    sizes = []
    for share in shares:
        size = max(1, round(total**share))
        if rng.random() < 0.4:
            size = 1 << max(0, size.bit_length() - 1)
        sizes.append(size)
    return tuple(sizes)


def _maker(
    shape: tuple[int, ...], dtype: torch.dtype, order: list[int], step: int, skip: int, seed: int, small: bool
) -> Callable[..., torch.Tensor]:
    """Makes tensors of a layout: dims stored in `order`, every `step`-th element of the last, `skip` elements in."""

    def make(shape: tuple[int, ...] = shape, dtype: torch.dtype = dtype, turn: int = 0) -> torch.Tensor:
        stored = [shape[d] for d in order] if len(shape) == len(order) else list(shape)
        if stored:
            stored[-1] *= step
        count = math.prod(stored) + skip
        if small:
            source = torch.Generator().manual_seed(seed + turn)
            flat = torch.randn(count, generator=source, dtype=torch.float64)
            flat = flat.to(dtype) if dtype.is_floating_point else (flat * 20).to(dtype)
        else:
            flat = torch.empty(count, dtype=dtype, device="meta")
        x = flat[skip:].view(stored)[..., ::step] if stored else flat[skip:].view(())
        if len(shape) == len(order):
            x = x.permute([order.index(d) for d in range(len(shape))])
        return x

    return make


def _options(
    name: str, rng: random.Random, shape: tuple[int, ...], dim: int, several: list[int], guarantee: str
) -> tuple[Callable[[Any], Any], str]:
    keep, g = rng.random() < 0.3, guarantee
    named: Any = getattr(tilefold, name, None)

    def ours(*arguments: Any, guarantee: str, **given: Any) -> Any:
        takes = guarantee != "run_to_run" and "guarantee" in inspect.signature(named).parameters
        return named(*arguments, **given, **({"guarantee": guarantee} if takes else {}))

    if name in ONE_DIM:
        return lambda t: ours(t(), dim=dim, keepdim=keep, guarantee=g), f"dim {dim} {keep}"
    if name in FOLDS:
        if name in ("prod", "count_nonzero", "any", "all"):
            return lambda t: ours(t(), dim=dim, guarantee=g), f"dim {dim}"
        return lambda t: ours(t(), dim=tuple(several), keepdim=keep, guarantee=g), f"dim {several} {keep}"
    if name in ("softmax", "log_softmax", "normalize", *SCANS):
        return lambda t: ours(t(), dim=dim, guarantee=g), f"dim {dim}"
    if name in ("layer_norm", "rms_norm"):
        rest = shape[rng.randrange(len(shape)) :]
        weighted, added = rng.random() < 0.5, rng.random() < 0.3

        def norm(t: Any) -> Any:
            given: dict[str, Any] = {"weight": t(rest, turn=1)} if weighted else {}
            if added:
                given["residual"] = t(turn=2)
            return ours(t(), rest, guarantee=g, **given)

        return norm, f"{rest} weight {weighted} residual {added}"
    if name == "group_norm":
        groups = rng.choice([k for k in range(1, 9) if shape[min(1, len(shape) - 1)] % k == 0])
        return lambda t: ours(t(), groups, guarantee=g), f"groups {groups}"
    return _other(name, rng, shape, dim, several, g)


def _other(
    name: str, rng: random.Random, shape: tuple[int, ...], dim: int, several: list[int], g: str
) -> tuple[Callable[[Any], Any], str]:
    if name == "topk":
        k = rng.randint(1, min(32, shape[dim]))
        return lambda t: tilefold.topk(t(), k, dim, guarantee=g), f"{k} dim {dim}"
    if name == "transpose":
        other = rng.randrange(len(shape))
        return lambda t: tilefold.transpose(t(), dim, other), f"{dim} {other}"
    if name == "matmul":
        columns, relu = rng.choice((1, 8, 16, 40, 256)), rng.choice((None, "relu"))
        return (
            lambda t: tilefold.matmul(t(), t((shape[-1], columns), turn=1), epilogue=relu, guarantee=g),
            f"{columns} {relu}",
        )
    if name == "segment":
        rows = shape[dim]
        offsets = torch.tensor([0, *sorted(rng.randint(0, rows) for _ in range(rng.randint(0, 40))), rows])
        which = rng.choice(("SUM", "LOGSUMEXP", "ARGMAX"))
        return (
            lambda t: tilefold.segment_reduce(
                t(), getattr(monoids, which), offsets.to(t().device), dim=dim, guarantee=g
            ),
            f"{which} {len(offsets)} dim {dim}",
        )
    if name == "affine":
        reverse = rng.random() < 0.3
        return (
            lambda t: tilefold.scan((t(), t(turn=1)), monoids.AFFINE, dim=dim, reverse=reverse, guarantee=g),
            f"dim {dim} reverse {reverse}",
        )
    if name == "scan":
        which, flag = (
            rng.choice((_softmax_pair, _last_one)),
            rng.choice(({}, {"exclusive": True}, {"reverse": True})),
        )
        return (
            lambda t: tilefold.scan(t(), which(), dim=dim, guarantee=g, **flag),
            f"{which.__name__} dim {dim} {flag}",
        )
    if name == "map":
        return (
            lambda t: tilefold.reduce_map(
                t(), monoids.NORM(2.0), lambda x, n: x / n, dim=tuple(several), guarantee=g
            ),
            f"dim {several}",
        )
    which = rng.choice((*CATALOGUE, _softmax_pair, _last_one))
    made = getattr(which, "__name__", which)
    return (
        lambda t: tilefold.reduce(
            t(),
            getattr(monoids, which) if isinstance(which, str) else which(),
            dim=tuple(several),
            guarantee=g,
        ),
        f"{made} dim {several}",
    )


def _lowered(call: Callable[[], Any]) -> tuple[str, list[Any]] | None:
    """The plan's text and the kernel calls of a call, for an H200; None of one that plans nothing."""
    try:
        with explaining():
            call()
    except ExplainedError as found:
        plan, calls = lowered(found.request, found.tensors, H200)
        return str(plan), list(calls)
    return None


def drawn_at_limits(seed: int, number: int) -> tuple[str, Callable[[], Any]]:
    """A call on tensors whose sizes are powers of two, or one more or less, where most limits of the planner lie."""
    rng = random.Random(f"limits {seed} {number}")
    bits, shape = rng.uniform(3, 27), list[int]()
    for _ in range(rng.choice((1, 2, 2, 2, 3, 3, 4))):
        power = round(rng.uniform(0, bits))
        bits -= power
        shape.append(max(1, (1 << power) + rng.choice((0, 0, 0, 1, -1))))
    rng.shuffle(shape)
    said, call, _ = _drawn(rng, rng.choice(NAMES), tuple(shape), small=False)
    return said, call


def drawn_backward(seed: int, number: int) -> tuple[str, Callable[[], Any]]:
    """A call that is differentiated with regard to every tensor of floats, and its derivatives."""
    rng = random.Random(f"backward {seed} {number}")
    shape = _shape(rng, rng.choice((1, 2, 2, 2, 3)), BACKWARD)
    dtype = rng.choice(FLOATS)
    guarantee = rng.choice(("run_to_run",) * 3 + ("batch_invariant",))
    name, dim = rng.choice(DIFFERENTIATED), rng.randrange(len(shape))
    options, text = _options(name, rng, shape, dim, sorted(rng.sample(range(len(shape)), 1)), guarantee)
    given = list[torch.Tensor]()

    def tensor(sizes: tuple[int, ...] = shape, dtype: torch.dtype = dtype, turn: int = 0) -> torch.Tensor:
        given.append(torch.empty(sizes, dtype=dtype, requires_grad=True))
        return given[-1]

    def call() -> None:
        made = options(tensor)
        results = [t for t in (made if isinstance(made, tuple) else (made,)) if t.requires_grad]
        torch.autograd.grad(results, given, [torch.empty_like(t) for t in results], allow_unused=True)

    return f"{name} {'x'.join(map(str, shape))} {str(dtype)[6:]} {text} {guarantee}", call


def _asked(call: Callable[[], Any]) -> list[tuple[Any, list[torch.Tensor]]]:
    """What a call asks for, and what its derivatives ask for; every result is 0."""
    found = list[tuple[Any, list[torch.Tensor]]]()

    def answered(request: Any, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        found.append((request, list(tensors)))
        return [torch.zeros(shape, dtype=dtype) for shape, dtype in request.results]

    with (
        mock.patch.object(dispatch, "_backend_of", return_value="interpret"),
        mock.patch.object(dispatch, "_interpreted", answered),
    ):
        call()
    return found


def plan_lines(seed: int = PLANS_SEED) -> Iterator[str]:
    """The plans of drawn calls, a line each, and of those that `limits.py` found to come near to the planner's limits."""
    for number in range(PLANS):
        yield plan_line("", number, seed=seed)
    for kind, numbers in json.loads(LIMITS.read_text(encoding="utf-8")).items():
        for number in numbers:
            yield plan_line(kind, number, seed=seed)


def plan_line(kind: str, number: int, *, seed: int = PLANS_SEED, launches: bool = True) -> str:
    """A call's text, and what `_plans_of` says of what it asks for; of every second one with its `launches`."""
    draw = {"": drawn, "limits": drawn_at_limits, "backward": drawn_backward}[kind]
    said, call, *_ = draw(seed, number)
    parts = [f"{kind} {number} {said}".strip()]
    chip = of_chip(NAMED[CHIPS[number % len(CHIPS)]]) if kind else H200
    try:
        for request, tensors in _asked(call) if kind == "backward" else _explained(call):
            parts += _plans_of(request, tensors, chip, number % 4 or 4, launches and number % 2 == 1)
    except TilefoldError as error:
        parts.append(type(error).__name__)
    return " | ".join(parts)


def _explained(call: Callable[[], Any]) -> list[tuple[Any, list[torch.Tensor]]]:
    try:
        with explaining():
            call()
    except ExplainedError as found:
        return [(found.request, list(found.tensors))]
    return []


def _plans_of(
    request: Any, tensors: list[torch.Tensor], chip: Device, threads: int, launches: bool
) -> Iterator[str]:
    """The notes of a request's plans for a chip and, of folds and scans, for a CPU's loops, each with a hash of its settings;
    a hash of the launches, and one of what `explain_plan` prints."""
    problem, plan = request.plan(tensors, chip, library=True)
    for p in (plan, *_cpu_plans(request, tensors, threads)):
        yield f"{p.note} {_of((p.strategy, p.working, p.workspaces))[:6]}"
    if launches:
        made = [replace(c, source="") for c in calls_of(plan, problem, request.computation)]
        text = str(with_least_time(plan, tensors, request.results, chip))
        yield f"launched {_of(made)[:6]} said {_of(text)[:6]}"


def _cpu_plans(request: Any, tensors: Sequence[torch.Tensor], threads: int) -> Iterator[Plan]:
    if isinstance(request, Reduction):
        problem = cpu_problem(tensors, request.program, request.dims, request.guarantee)
        yield cpu_plan(problem, request.program, request.guarantee, threads)
    elif isinstance(request, Scan):
        inner, rows = math.prod(request.shape[request.dim + 1 :]), math.prod(request.rows)
        yield cpu_scan(request.shape[request.dim], rows, request.guarantee, threads, inner)


def _of(value: Any) -> str:
    return hashlib.sha256(value if isinstance(value, bytes) else repr(value).encode()).hexdigest()[:16]


def _bits(found: Any) -> str:
    if isinstance(found, torch.Tensor):
        raw = torch.empty(found.numel(), dtype=found.dtype).copy_(found.reshape(-1)).view(torch.uint8)
        return _of((tuple(found.shape), str(found.dtype), raw.numpy().tobytes()))
    return _of([_bits(f) for f in found])


def recorded(
    seed: int, number: int, executes: Callable[[dict[str, Any]], bool] = lambda line: False
) -> dict[str, Any]:
    """The line of a drawn call; of one that `executes` with the results of its kernels."""
    said, call, answered = drawn(seed, number)
    line: dict[str, Any] = {"number": number, "call": said}
    try:
        line |= _planned(call)
        if answered:
            line["answers"] = _bits(call())
            if line.get("launches") and executes(line):
                line["ptx"] = _bits(_executed(call))
    except TilefoldError as error:
        line["refused"] = f"{type(error).__name__}: {error}"
    return line


def _planned(call: Callable[[], Any]) -> dict[str, Any]:
    made = _lowered(call)
    if made is None:
        return {}
    plan, calls = made
    return {"plan": _of(plan), "launches": [_of(c) for c in calls], "kernels": [c.kernel for c in calls]}


def _executed(call: Callable[[], Any]) -> list[torch.Tensor]:
    """The results of a call's kernels for an H200, executed from their PTX by what the tests have for it."""
    if (tests := str(Path(__file__).parents[1] / "tests")) not in sys.path:
        sys.path.insert(0, tests)
    from asked import executed

    return executed(call, H200)[0]


class _NothingDrawn:
    """A generator of tensors without data."""

    def manual_seed(self, seed: int) -> None:
        """None, which torch takes for its own."""


class _Generator:
    """In place of torch's class while tensors without data are drawn."""

    def __new__(cls, device: str = "cpu", of: Callable[..., Any] = torch.Generator) -> Any:
        return _NothingDrawn() if device == "meta" else of(device)


def of_suites(names: Iterable[str], count: int = 60) -> Iterator[dict[str, Any]]:
    """A line for every case of these suites, of `count` cases where they are drawn: its plan and launches for an H200.

    What runs on a CPU alone is run, at its small size: the line has the plan and the answers' bits.
    """
    for name in names:
        suite = load_suite(name)
        ours = next(variant for variant in suite.variants if variant.name == "ours")
        for case in suite.select("small" if suite.cpu_only else "full", 0, count):
            said = f"{name}: {case.name}"
            yield {"case": said, "call": said} | (_run if suite.cpu_only else _without_data)(ours, case)


def _run(ours: Any, case: Any) -> dict[str, Any]:
    x = case.draw("cpu")
    answers = [_bits(choice.call(x)) for choice in ours.build(case, x)]
    return {"plan": _of(str(tilefold.last_plan())), "answers": answers}


def _without_data(ours: Any, case: Any) -> dict[str, Any]:
    with mock.patch.object(torch, "Generator", _Generator):
        x = case.draw("meta")
        (choice,) = ours.build(case, x)
        return _planned(functools.partial(choice.call, x))


def _lines(path: Path) -> dict[object, dict[str, Any]]:
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {line.get("number", line.get("case")): line for line in lines}


def compare(before: Path, after: Path) -> int:
    """Print every difference by its kind, and the first few calls of each; exit status 1 if there is any.

    Results of PTX are compared where both recordings have them.
    """
    old, new = _lines(before), _lines(after)
    both = [key for key in old if key in new]
    kinds = Counter[str]()
    for key in both:
        for kind in ("call", "plan", "kernels", "launches", "answers", "refused", "ptx"):
            one, other = old[key].get(kind), new[key].get(kind)
            if one != other and (kind != "ptx" or None not in (one, other)):
                kinds[kind] += 1
                if kinds[kind] <= SHOWN:
                    print(f"{kind}: {key} {old[key]['call']}")
                    if kind in ("kernels", "refused"):
                        print(f"    {one} -> {other}")
    by_ptx = sum("ptx" in old[key] and "ptx" in new[key] for key in both)
    print(f"{len(both)} calls, {by_ptx} of them executed from PTX; differences: {dict(kinds) or 'none'}")
    return 1 if kinds else 0


def record(
    path: Path, count: int, seed: int, suites: Iterable[str], ptx: int = 0, beside: Path | None = None
) -> None:
    """Write the lines of so many drawn calls, and of all cases of these suites.

    Executed from PTX are the first `ptx` calls, and those of which another recording, `beside`, has other launches.
    """
    others, left = _lines(beside) if beside else {}, ptx

    def executes(line: dict[str, Any]) -> bool:
        nonlocal left
        other = others.get(line["number"])
        left -= 1
        return left >= 0 or (other is not None and other.get("launches") != line["launches"])

    with path.open("w", encoding="utf-8") as out:
        for number in range(count):
            if number % 200 == 0:
                print(number, file=sys.stderr, flush=True)
            out.write(json.dumps(recorded(seed, number, executes)) + "\n")
        for line in of_suites(suites):
            out.write(json.dumps(line) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Record, compare two recordings, or write plans."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("record", help="write a recording")
    writing.add_argument("file", type=Path)
    writing.add_argument("--count", type=int, default=3000, help="how many calls are drawn")
    writing.add_argument("--seed", type=int, default=1)
    writing.add_argument(
        "--suites", nargs="*", default=suite_names(), help="all without; none after --suites alone"
    )
    writing.add_argument("--ptx", type=int, default=300, help="of how many calls the PTX is executed")
    writing.add_argument(
        "--beside", type=Path, help="a recording: calls with other launches are executed too"
    )
    comparing = commands.add_parser("compare", help="say what differs between two")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    planning = commands.add_parser("plans", help="write the plans that a test holds the planner to")
    planning.add_argument("file", type=Path)
    asked = parser.parse_args(arguments)
    if asked.command == "plans":
        asked.file.write_text("".join(f"{line}\n" for line in plan_lines()), encoding="utf-8")
        return 0
    if asked.command == "compare":
        return compare(asked.before, asked.after)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    record(asked.file, asked.count, asked.seed, asked.suites, asked.ptx, asked.beside)
    return 0


if __name__ == "__main__":
    sys.exit(main())
