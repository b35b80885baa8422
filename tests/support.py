"""What each public operation does in each of torch's modes, tried: `python tests/support.py` writes docs/support.md.

A cell is "yes" where the call does what the column says, else the name of its error. The page's columns that need a GPU are
kept as they are where there is none.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch._dynamo.utils import counters
from torch.autograd import gradcheck, gradgradcheck
from torch.func import vmap

import tilefold
from tilefold import Monoid, math, monoids
from tilefold.errors import GradientError
from tilefold.runtime.overrides import listed

Tensor = torch.Tensor
ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "support.md"


class Row(NamedTuple):
    """A call of some tensors, and their shapes; `whole` ones are numbers from 0 to 4. Each length of 4 may be another.

    Of calls that take no float64 (`wide`) no derivative is compared.
    """

    call: Callable[..., Any]
    shapes: Sequence[tuple[int, ...]]
    whole: Sequence[int] = ()
    wide: bool = True


SHAPE = (4, 6)
DOT = Monoid(lambda a, b: a + b, 0, lift=lambda x, w: x * w, name="dot")
OFFSETS = {"cpu": torch.tensor([0, 1, 4, 6])}
if torch.cuda.is_available():  # beforehand: a graph's capture copies nothing from the host
    OFFSETS["cuda"] = OFFSETS["cpu"].cuda()


def _named(name: str, *rest: Any, **given: Any) -> Row:
    return Row(lambda x: getattr(tilefold, name)(x, *rest, **given), [SHAPE])


def _loss(x: Tensor, w: Tensor, target: Tensor) -> Tensor:
    return tilefold.linear_cross_entropy(x, w, target[0])


def _clipped(x: Tensor) -> tuple[Tensor, Tensor]:
    """A gradient's norm, and what it is clipped to."""
    parameter = x.detach()
    parameter.grad = x.detach().clone()
    return tilefold.clip_grad_norm_([parameter], 1.0), parameter.grad


_OF_ROWS = (
    "sum mean prod amax amin logsumexp std var norm vector_norm all any argmax argmin count_nonzero aminmax max min std_mean "
    "var_mean softmax log_softmax normalize cumsum cumprod cummax cummin logcumsumexp"
)
ROWS: dict[str, Row] = {
    **{name: _named(name, dim=1) for name in _OF_ROWS.split()},
    **{
        name: Row(functools.partial(lambda name, x: getattr(tilefold, name)(x, 1), name), [SHAPE], [0])
        for name in ("bitwise_and", "bitwise_or", "bitwise_xor")
    },
    "layer_norm": Row(lambda x, w, b: tilefold.layer_norm(x, x.shape[1:], w, b), [SHAPE, (6,), (6,)]),
    "rms_norm": Row(lambda x, w: tilefold.rms_norm(x, x.shape[1:], w, 1e-5), [SHAPE, (6,)]),
    "group_norm": Row(lambda x, w: tilefold.group_norm(x, 2, w), [SHAPE, (6,)]),
    "rms_norm_quantized": Row(lambda x: tilefold.rms_norm_quantized(x, x.shape[1:], dtype=torch.int8), [SHAPE], wide=False),
    "cross_entropy": Row(lambda x, t: tilefold.cross_entropy(x, t[0]), [SHAPE, (1, 4)], [1]),
    "linear_cross_entropy": Row(_loss, [SHAPE, (5, 6), (1, 4)], [2]),
    "linear_reduce": Row(lambda x, w: tilefold.linear_reduce(x, w, monoids.LOGSUMEXP), [SHAPE, (5, 6)]),
    "reduce": Row(lambda x, w: tilefold.reduce((x, w), DOT, 1), [SHAPE, SHAPE]),
    "reduce_map": Row(
        lambda x, w: tilefold.reduce_map(x, monoids.LOGSUMEXP, lambda v, lse, e: math.exp(v - lse) * e, 1, extras=w),
        [SHAPE, (6,)],
    ),
    "reduce_many": Row(lambda x, w: tilefold.reduce_many([x, w], monoids.NORM(2)), [SHAPE, (6,)]),
    "scan": Row(lambda a, x: tilefold.scan((a, x), monoids.AFFINE, 1)[1], [SHAPE, SHAPE]),
    "segment_reduce": Row(
        lambda x: tilefold.segment_reduce(x, monoids.LOGSUMEXP, OFFSETS[x.device.type], dim=1), [SHAPE]
    ),
    "topk": Row(lambda x: tilefold.topk(x, 2, 1), [SHAPE]),
    "transpose": Row(lambda x: tilefold.transpose(x, 0, 1), [SHAPE]),
    "matmul": Row(lambda x, w, b: tilefold.matmul(x, w, bias=b, epilogue="silu"), [SHAPE, (6, 5), (5,)]),
    "clip_grad_norm_": Row(_clipped, [SHAPE]),
}  # fmt: skip


def given(
    row: Row, device: str = "cpu", dtype: torch.dtype = torch.float32, rows: int = 4, lead: Sequence[int] = ()
) -> list[Tensor]:
    """A call's tensors, drawn anew from one seed; `rows` stands for each length of 4."""
    seeded, found = torch.Generator().manual_seed(rows), []
    for i, shape in enumerate(row.shapes):
        sizes = [*lead, *(rows if n == 4 else n for n in shape)]
        if i in row.whole:
            found.append(torch.randint(0, 5, sizes, generator=seeded).to(device))
        else:
            drawn = torch.rand(sizes, dtype=torch.float64, generator=seeded) + 0.5
            found.append(drawn.to(dtype).to(device))
    return found


def flat(results: Any) -> list[Tensor]:
    """All tensors of a call's results."""
    return [t for r in listed(results) for t in (flat(r) if isinstance(r, list | tuple) else [r])]


def _same(got: Any, want: Any) -> None:
    assert len(flat(got)) == len(flat(want))
    for a, b in zip(flat(got), flat(want), strict=True):
        assert a.dtype == b.dtype, (a.dtype, b.dtype)
        assert torch.equal(a, b), (a, b)


def _close(got: Any, want: Any, **bound: float) -> None:
    for a, b in zip(flat(got), flat(want), strict=True):
        torch.testing.assert_close(a, b, **bound)


# -------------------------------------------------------------------------------------------------------- the columns


class NoDerivativeError(Exception):
    """No result has a derivative: whole numbers, truth values, positions."""


def _asking(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [t.detach().requires_grad_(t.is_floating_point()) for t in tensors]


def _slopes(row: Row, tensors: Sequence[Tensor], function: Callable[..., Any]) -> list[Tensor]:
    """Results and gradients.

    Raises:
        NoDerivativeError: there are none.
    """
    asked = _asking(tensors)
    made = [t for t in flat(function(*asked)) if t.requires_grad]
    if not made:
        raise NoDerivativeError
    wrt = [t for t in asked if t.requires_grad]
    cotangents = [
        torch.linspace(0.5, 1.5, t.numel(), device=t.device, dtype=t.dtype).view_as(t) for t in made
    ]
    found = torch.autograd.grad(made, wrt, cotangents, allow_unused=True)
    return [*made, *(torch.zeros(()) if g is None else g for g in found)]


def _has_slopes(row: Row, tensors: Sequence[Tensor]) -> bool:
    try:
        _slopes(row, tensors, row.call)
    except (NoDerivativeError, GradientError):
        return False
    return True


def _checked(row: Row, device: str, check: Callable[..., bool], **options: Any) -> None:
    """The derivatives of all results that have one, beside finite differences.

    Raises:
        NoDerivativeError: there are none.
    """
    asked = _asking(given(row, device, torch.float64 if row.wide else torch.float32))
    own = [i for i, t in enumerate(flat(row.call(*asked))) if t.requires_grad]
    if not own:
        raise NoDerivativeError

    def call(*tensors: Tensor) -> tuple[Tensor, ...]:
        made = flat(row.call(*tensors))
        return tuple(made[i] for i in own)

    assert check(call, asked, fast_mode=True, **options)


def eager(row: Row, device: str) -> None:
    tensors = given(row, device)
    made = row.call(*tensors)
    with tilefold.backend("reference"):
        wanted = row.call(*(t.cpu() for t in tensors))
    _close([t.cpu() for t in flat(made)], wanted)
    _same(row.call(*tensors), made)


def grad(row: Row, device: str) -> None:
    _checked(row, device, gradcheck)


def double_backward(row: Row, device: str) -> None:
    _checked(row, device, gradgradcheck)


def forward_derivative(row: Row, device: str) -> None:
    _checked(row, device, gradcheck, check_forward_ad=True, check_backward_ad=False)


def fullgraph(row: Row, device: str) -> None:
    torch._dynamo.reset()
    tensors = given(row, device)
    compiled = torch.compile(row.call, fullgraph=True, backend="aot_eager")
    _same(compiled(*tensors), row.call(*tensors))
    if _has_slopes(row, tensors):
        _close(_slopes(row, tensors, compiled), _slopes(row, tensors, row.call), rtol=1e-5, atol=1e-5)


def dynamic(row: Row, device: str) -> None:
    torch._dynamo.reset()
    before = counters["stats"]["unique_graphs"]
    compiled = torch.compile(row.call, fullgraph=True, dynamic=True, backend="eager")
    for rows in (5, 7, 9, 12):
        tensors = given(row, device, rows=rows)
        _same(compiled(*tensors), row.call(*tensors))
    graphs = counters["stats"]["unique_graphs"] - before
    assert graphs <= 2, f"{graphs} graphs of four lengths"


class _Module(torch.nn.Module):
    def __init__(self, row: Row) -> None:
        super().__init__()
        self.row = row

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(flat(self.row.call(*tensors)))


def export(row: Row, device: str) -> None:
    tensors = given(row, device)
    program = torch.export.export(_Module(row), tuple(tensors))
    _same(program.module()(*tensors), tuple(flat(row.call(*tensors))))


def mapped(row: Row, device: str) -> None:
    tensors = given(row, device, lead=(3,))
    made = flat(vmap(row.call)(*tensors))
    each = [flat(row.call(*(t[i] for t in tensors))) for i in range(3)]
    _close(made, [torch.stack(parts) for parts in zip(*each, strict=True)])


def autocast(row: Row, device: str) -> None:
    tensors = given(row, device)
    wanted = row.call(*tensors)
    with torch.autocast(device, torch.bfloat16):
        made = row.call(*tensors)
    for a, b in zip(flat(made), flat(wanted), strict=True):
        torch.testing.assert_close(a.to(b.dtype), b, rtol=0.05, atol=0.0)


@contextlib.contextmanager
def _deterministically() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def deterministic(row: Row, device: str) -> None:
    tensors = given(row, device)
    with _deterministically():
        _same(row.call(*tensors), row.call(*tensors))
        if _has_slopes(row, tensors):
            _same(_slopes(row, tensors, row.call), _slopes(row, tensors, row.call))


def graph(row: Row, device: str) -> None:
    tensors = given(row, device)
    call = functools.partial(_slopes, row, function=row.call) if _has_slopes(row, tensors) else row.call
    others = [t.flip(0).contiguous() for t in tensors]
    wanted = call(others) if call is not row.call else row.call(*others)

    def run() -> Any:
        return call(tensors) if call is not row.call else row.call(*tensors)

    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        made = run()
    for t, o in zip(tensors, others, strict=True):
        t.copy_(o)
    recorded.replay()
    torch.cuda.synchronize()
    _same(made, wanted)


COLUMNS: dict[str, Callable[[Row, str], None]] = {
    "CPU": eager,
    "grad": grad,
    "double backward": double_backward,
    "forward derivative": forward_derivative,
    "fullgraph": fullgraph,
    "dynamic": dynamic,
    "export": export,
    "vmap": mapped,
    "autocast": autocast,
    "deterministic": deterministic,
}
ON_GPU: dict[str, Callable[[Row, str], None]] = {"GPU": eager, "GPU grad": grad, "CUDA graph": graph}


def cell(name: str, column: str) -> str:
    """What the page says of an operation in a mode."""
    on_gpu = column in ON_GPU
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (ON_GPU if on_gpu else COLUMNS)[column](ROWS[name], "cuda" if on_gpu else "cpu")
    except NoDerivativeError:
        return "none"
    except Exception as error:  # the page names it
        return type(error).__name__
    return "yes"


def table(text: str) -> dict[tuple[str, str], str]:
    """The page's cells."""
    rows = [
        [c.strip() for c in line.strip("|\n").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    names, *body = [row for row in rows if not set("".join(row)) <= set("-: ")]
    return {
        (row[0].strip("`"), column): c for row in body for column, c in zip(names[1:], row[1:], strict=True)
    }


_TEXT = """# What each operation does in each of torch's modes

Written by the test that tries it: `python tests/support.py` (`tests/integration/test_support.py` compares; its
columns of a GPU run in `make gpu-test`). Small float32 tensors, torch {torch}.

- **CPU**, **GPU**: a plain call, beside the `reference` backend; a repeated call has the same bits.
- **grad**, **double backward**, **forward derivative**: beside finite differences, in float64. "none": no result has
  a derivative.
- **fullgraph**: `torch.compile(fullgraph=True)`, backend aot_eager, has the eager call's bits. So have gradients, or
  they are within rounding: on a CPU torch's own derivative serves some eager calls, where a graph has the one that
  is derived here.
- **dynamic**: four lengths under `dynamic=True` make two graphs at most.
- **export**, **vmap**, **autocast** (bfloat16), **deterministic** (`torch.use_deterministic_algorithms`, with
  gradients), **CUDA graph** (captured with its gradient, replayed on other elements).

Compiled ahead of time (`torch._inductor.aoti_compile_and_package`), with a dynamic length, all of them have the eager
call's bits, also in a fresh process that imports tilefold (`tests/integration/test_ahead_of_time.py`, on a CPU).

Any other word is the class of the error that the call raises. `RuntimeError` is torch's own, of `_foreach_mul_`.

"""


def page(kept: dict[tuple[str, str], str]) -> str:
    """The page; columns of a GPU from `kept` where there is none."""
    columns = [*COLUMNS, *ON_GPU]
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name in ROWS:
        here = torch.cuda.is_available()
        cells = [kept.get((name, c), "") if c in ON_GPU and not here else cell(name, c) for c in columns]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return _TEXT.format(torch=torch.__version__.split("+")[0]) + "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
    PAGE.write_text(page(table(PAGE.read_text()) if PAGE.exists() else {}))
