"""What is kept for later calls is made outside the modes of the caller who asked first."""

from __future__ import annotations

import contextlib
import gc
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode

import tilefold as tf
from in_modes import CALLS, INF, LAST_LARGE, MODES, TILTED, WIDE, X, default_dtype
from test_running import run
from tilefold import Monoid, math
from tilefold.api import dispatch
from tilefold.backends.cpu import scans
from tilefold.runtime.caching import keep_graphs_by, kept_outside_modes, source_tag
from tilefold.runtime.modes import outside_modes

ROOT = Path(tf.__file__).parent

pytestmark = [  # torch's export does the first, its forward_ad the second, Triton's interpreter the others
    pytest.mark.filterwarnings("ignore:.*should not be instantiated"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*ndim > 0 to a scalar:DeprecationWarning"),
]

# What these compile takes a second a call, so that they are given one call of each kind.
SLOW = {"torch.compile", "export", "make_fx, symbolic"}
FEW = ["std with a correction", "norm", "constants", "made", "matmul, traced"]

# ---------------------------------------------------------------------------------------------- what is kept where


def modules() -> Iterator[types.ModuleType]:
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "tilefold" and not name.startswith(("tilefold.xray", "tilefold.bench")):
            yield module


def forget() -> None:
    """As in a fresh process, but for monoids."""
    dispatch._executables.clear()
    scans._walks.clear()
    for module in modules():
        for value in list(vars(module).values()):
            if hasattr(value, "cache_clear"):
                value.cache_clear()
            elif hasattr(value, "__wrapped__") and hasattr(value.__wrapped__, "cache_clear"):
                value.__wrapped__.cache_clear()


def kept_tensors() -> list[torch.Tensor]:
    """Every tensor that the package's modules hold on to, through caches, containers, objects and closures."""
    tensors, seen = [], set[int]()
    ahead = [value for module in modules() for value in vars(module).values()]
    while ahead:
        value = ahead.pop()
        if id(value) in seen or isinstance(value, types.ModuleType | type):
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, types.FunctionType):
            ahead += [*(value.__closure__ or ()), *(value.__defaults__ or ()), *vars(value).values()]
        elif type(value).__module__.split(".")[0] in (
            "builtins",
            "functools",
            "tilefold",
            "collections",
            "_thread",
        ):
            ahead += gc.get_referents(value)
    return tensors


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list):
        for each in value:
            yield from leaves(each)
    else:
        yield value


def check_same(name: str, got: Any, want: Any) -> None:
    for one, other in zip(leaves(got), leaves(want), strict=True):
        assert type(one) is type(other), name
        if isinstance(one, torch.Tensor):
            assert (one.dtype, one.device, one.shape) == (other.dtype, other.device, other.shape), name
            assert not one.is_inference(), name
            assert torch.equal(bits(one), bits(other)), name
        else:
            assert one == other, name


def bits(t: torch.Tensor) -> torch.Tensor:
    return t.contiguous().view(torch.uint8) if t.ndim else t.view(1).view(torch.uint8)


@pytest.fixture(scope="module")
def wanted() -> dict[str, Any]:
    """What each call gives where nothing was ever switched on."""
    forget()
    return {name: call() for name, call in CALLS.items()}


@pytest.mark.parametrize("mode", list(MODES))
def test_first_calls_in_a_mode_change_no_later_one(mode: str, wanted: dict[str, Any]) -> None:
    """Whether the mode lets a call through or not, nothing of the mode stays behind."""
    forget()
    for name in FEW if mode in SLOW else CALLS:
        with contextlib.suppress(RuntimeError, TypeError, NotImplementedError, AssertionError):
            MODES[mode](CALLS[name])
    for name, call in CALLS.items():
        check_same(name, call(), wanted[name])
    for t in kept_tensors():
        assert type(t) is torch.Tensor
        assert t.device.type == "cpu"
        assert not t.is_inference()
        assert not torch._C._functorch.is_functorch_wrapped_tensor(t)
        assert not torch._is_functional_tensor(t)


def test_the_search_for_kept_tensors_finds_them() -> None:
    forget()
    assert not kept_tensors()
    tf.reduce(X, TILTED, 1)
    assert 0.1 in [t.item() for t in kept_tensors() if t.dtype == torch.float64 and not t.ndim]


def test_scans_keep_the_buffers_of_a_few_kinds() -> None:
    forget()
    for rows in range(1, 40):
        tf.scan(X[:1].repeat(rows, 1), LAST_LARGE, 1)
    kept = [walk for walks in scans._walks.values() for walk in walks]
    assert 0 < len(kept) <= scans.MOST * scans.OF_A_KIND
    assert all(
        len(walk.tapes) <= 4 for walk in kept
    )  # a whole tile, a last one, with a state before them or not


@pytest.mark.parametrize(
    "mode",
    [
        "default device",
        "meta",
        "default float64",
        "default bfloat16",
        "deterministic",
        "dual level",
        "vmap",
    ],
)
def test_calls_in_a_mode_that_is_not_about_them_give_what_they_give_outside(
    mode: str, wanted: dict[str, Any]
) -> None:
    forget()
    got: dict[str, Any] = {}
    for name, call in CALLS.items():
        MODES[mode](lambda name=name, call=call: got.update({name: call()}))
    for name, result in got.items():
        check_same(name, result, wanted[name])
    assert got.keys() == CALLS.keys()


@pytest.mark.parametrize(
    "mode",
    [
        "torch.device('meta')",
        "FakeTensorMode()",
        "torch.inference_mode()",
        "torch.autocast('cpu', dtype=torch.bfloat16)",
    ],
)
def test_importing_in_a_mode_changes_no_later_call(mode: str) -> None:
    program = f"""
import torch
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode
with {mode}:
    import tilefold as tf
    import tilefold.nn, tilefold.checkpoints.describe
    scaled = tf.Monoid(lambda a, b: a + b, 0, lift=lambda x: x * 0.5)
x = torch.ones(3, 5)
for result in (tf.reduce(x, scaled, 1), tf.var_mean(x, 1)[1] * 2.5, tf.matmul(x, x.mT, epilogue="relu")[0] / 2):
    assert result.tolist() == [2.5] * 3 and not result.is_inference() and result.dtype == torch.float32, result
assert scaled.commutative
"""
    done = run(program)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["auto", "cpu", "reference", "interpret"])
@pytest.mark.parametrize("default", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_constants_have_the_digits_of_their_dtype_whatever_the_default_is(
    name: str, default: torch.dtype
) -> None:
    chosen = Monoid(math.maximum, -INF, lift=lambda x: math.where(x > 0, 0.1, 1 / 3))
    constant = Monoid(math.maximum, -INF, project=lambda largest: 0.1)
    huge = Monoid(math.maximum, -1e300, commutative=True, check=False)
    with default_dtype(default), tf.backend(name):
        assert tf.reduce(WIDE, chosen).item() == 1 / 3
        assert tf.reduce(WIDE, constant).item() == 0.1
        assert tf.reduce(WIDE[:, :0], huge).item() == -1e300
        if name in ("auto", "interpret"):
            assert (
                tf.matmul(WIDE[:1], WIDE[:1].mT, epilogue=lambda x: math.where(x < 0, 0.1, 1 / 3)).item()
                == 1 / 3
            )
            assert tf.matmul(WIDE[:1], WIDE[:1].mT, epilogue=lambda x: 0.1).item() == 0.1


def test_every_cache_makes_what_it_keeps_outside_modes() -> None:
    """A cache of another kind needs a reason here: those below hold no tensors, nor anything computed with them."""
    allowed = {
        "runtime/caching.py": "the one place",
        "algebra/proofs/symmetry.py": "memory of one search, thrown away after it",
    }
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name.split("/")[0] not in ("xray", "bench") and name not in allowed:
            assert not re.search(r"\b(lru_cache|functools\.cache)\b", path.read_text()), name


def test_what_is_kept_is_made_once_and_outside_modes() -> None:
    seen = []

    @kept_outside_modes(2)
    def make(number: int, *, more: int = 0) -> torch.Tensor:
        """A tensor."""
        seen.append(number + more)
        return torch.ones(number + more)

    with torch.device("meta"), FakeTensorMode(), torch.inference_mode(), torch.autocast("cpu"):
        made = torch.vmap(lambda t: (make(2, more=1), t)[1])(torch.ones(2))
        assert torch.is_inference_mode_enabled()
        assert torch.is_autocast_enabled("cpu")
        assert torch.ones(1).is_meta
        assert made.shape == (2,)
    assert make(2, more=1) is make(2, more=1)
    assert not make(2, more=1).is_inference()
    assert make(2, more=1).tolist() == [1.0, 1.0, 1.0]
    assert seen == [3]
    assert make.__doc__ == "A tensor."
    assert torch.is_grad_enabled()


def test_modes_are_back_after_an_error() -> None:
    with torch.inference_mode(), FakeTensorMode() as mode:
        with pytest.raises(ValueError, match="inside"), outside_modes():
            raise ValueError("inside")
        assert torch.is_inference_mode_enabled()
        assert torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is mode


# ----------------------------------------------------------------------------------------- what torch keeps of graphs


def test_graphs_on_disk_are_found_again_by_the_same_source_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another version the derivatives and the rules of vmap may differ, which torch does not ask before it looks."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    compiler = torch.compiler.config
    own, found = source_tag(ROOT), []
    assert own in compiler.cache_key_tag.split("; ")
    for tag in (own, own, "tilefold of another source", own):
        with compiler.patch(cache_key_tag="of a user"):
            keep_graphs_by(tag)
            keep_graphs_by(tag)
            assert compiler.cache_key_tag == f"of a user; {tag}"
            torch._dynamo.reset()
            counters.clear()
            each = torch.vmap(lambda x: tf.logsumexp(x, 0))
            assert torch.equal(torch.compile(each, fullgraph=True)(X), each(X))
            found.append(counters["aot_autograd"]["autograd_cache_hit"])
    assert found == [0, 1, 0, 1]
    assert own in compiler.cache_key_tag.split("; ")


def test_a_tag_is_of_all_the_source_but_the_tools(tmp_path: Path) -> None:
    found = set()
    for place, text in (
        ("api/a.py", ""),
        ("api/a.py", "1"),
        ("b.py", "1"),
        ("api/c/d.py", "1"),
        ("xray/e.py", "1"),
    ):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(text)
        (tmp_path / "api/text.txt").write_text(place)
        found.add(source_tag(tmp_path))
    assert len(found) == 4
