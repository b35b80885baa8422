"""Files of projects' checkouts imported one by one, as they stand: without the packages around them, which want a GPU.

A checkout's place is given on the command line: the folder `--sources` holds one per project. Nothing of theirs is copied
here. Packages are entered without their `__init__`; what a file imports that is not there (compiled extensions, other
packages) is a stand-in that may be called, decorated with and asked for anything.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.machinery
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import triton
import triton.language as tl

# Folder in the place of sources: (repository, the packages that lie in it).
PROJECTS = {
    "flash-attention": ("Dao-AILab/flash-attention", ("flash_attn",)),
    "triton": ("triton-lang/triton", ()),
    "mamba": ("state-spaces/mamba", ("mamba_ssm",)),
    "unsloth": ("unslothai/unsloth", ("unsloth",)),
    "lightllm": ("ModelTC/lightllm", ("lightllm",)),
    "vllm": ("vllm-project/vllm", ("vllm",)),
    "sglang": ("sgl-project/sglang", ("sglang",)),
    "bitsandbytes": ("bitsandbytes-foundation/bitsandbytes", ("bitsandbytes",)),
}
# Of these packages only such modules are taken from the checkout: the rest loads libraries.
_ONLY = {"bitsandbytes": "bitsandbytes.backends.triton"}
# Other packages that some of these files import, and that need not be installed.
_FOREIGN = (
    "frozendict", "transformers", "unsloth_zoo", "torchao", "flashinfer", "sgl_kernel", "deep_gemm", "bitsandbytes",
    "huggingface_hub", "cutlass", "zmq", "msgspec", "regex", "cloudpickle", "pybase64",
)  # fmt: skip


class StandIn:
    """Anything: an attribute of it is one more, and as a decorator it returns what it is put on."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn(f"{self._name}.{name}")

    def __call__(self, *args: Any, **given: Any) -> Any:  # noqa: D102 - see the class
        if (
            len(args) == 1
            and not given
            and (callable(args[0]) or isinstance(args[0], (staticmethod, classmethod)))
        ):
            return args[0]
        return StandIn(f"{self._name}()")

    def __bool__(self) -> bool:
        return False

    def __getitem__(self, key: Any) -> Any:
        return StandIn(f"{self._name}[]")

    def __lt__(self, other: Any) -> bool:
        return False

    __gt__ = __le__ = __lt__

    def __ge__(self, other: Any) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()


class _Platform(StandIn):
    """vLLM's description of the machine."""

    def __init__(self) -> None:
        super().__init__("current_platform")

    def fp8_dtype(self) -> torch.dtype:
        """As on NVIDIA's chips."""
        return torch.float8_e4m3fn

    def is_arch_support_pdl(self) -> bool:
        """Launches follow one another here."""
        return False

    def is_cuda(self) -> bool:
        """It is."""
        return True


# What a stand-in must be, because the files compute with it when they are imported.
_KNOWN: dict[str, dict[str, Any]] = {
    "vllm.triton_utils": {"triton": triton, "tl": tl, "HAS_TRITON": True, "tldevice": tl.extra.cuda.libdevice,
        "use_tensor_descriptor": bool,
    },
    "unsloth.device_type": {
        "DEVICE_TYPE": "cuda", "DEVICE_TYPE_TORCH": "cuda", "DEVICE_COUNT": 1, "is_hip": lambda: False,
        "get_device_type": lambda: "cuda", "ALLOW_PREQUANTIZED_MODELS": True,
    },
    "unsloth.bnb_availability": {"native_kernels_ready": lambda *a, **k: False},
    "frozendict": {"frozendict": dict},
    "tabulate": {"tabulate": lambda *args, **given: ""},
    # Triton had these until 3.0.
    "triton.ops": {},
    "triton.ops.matmul_perf_model": {
        "early_config_prune": lambda configs, *a, **k: configs, "estimate_matmul_time": lambda **k: 1.0,
    },
    "vllm.platforms": {"current_platform": _Platform()},
    "vllm.utils.torch_utils": {"direct_register_custom_op": lambda **given: None},
}  # fmt: skip


class _Absent(ModuleType):
    """A module that is not there, or a package entered without its `__init__`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn(f"{self.__name__}.{name}")


class _Finder:
    """Finds modules of checkouts, and stand-ins for what they lack."""

    def __init__(self) -> None:
        self.roots: dict[str, Path] = {}  # package: the folder that holds it

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """As the import system asks."""
        first = name.partition(".")[0]
        if name in _KNOWN:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        if first in self.roots:
            at = self.roots[first].joinpath(*name.split("."))
            if at.with_suffix(".py").is_file() and name.startswith(_ONLY.get(first, "")):
                return importlib.util.spec_from_file_location(name, at.with_suffix(".py"))
            return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        if first in _FOREIGN:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: Any) -> ModuleType:
        """An empty one that answers anything."""
        made = _Absent(spec.name)
        made.__version__ = "9.9"  # type: ignore[attr-defined]
        made.__dict__.update(_KNOWN.get(spec.name, {}))
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is executed."""


_FINDER = _Finder()


def enter(sources: Path) -> list[str]:
    """Make the checkouts under a folder importable; which of them there are."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)  # type: ignore[arg-type]
    there = [name for name in PROJECTS if (sources / name).is_dir()]
    for name in there:
        for package in PROJECTS[name][1]:
            _FINDER.roots[package] = (sources / name).resolve()
    _tutorials.folder = (sources / "triton" / "python" / "tutorials").resolve()
    return there


def source(sources: Path, project: str) -> tuple[str, str]:
    """(repository, commit) of a checkout: what git says, or what its file COMMIT says if it was unpacked without git."""
    repository, noted = PROJECTS[project][0], sources / project / "COMMIT"
    if noted.is_file():
        return repository, noted.read_text().strip().partition(" ")[2]
    said = subprocess.run(
        ["git", "-C", sources / project, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    return repository, said.stdout.strip()


def module(name: str) -> ModuleType:
    """A file of a checkout, by its dotted name."""
    return importlib.import_module(name)


class _tutorials:  # noqa: N801 - a place to keep one value
    folder = Path()


def tutorial(file: str) -> ModuleType:
    """A file of Triton's tutorials: its definitions, without the demonstrations that stand between them."""
    return _definitions(_tutorials.folder / file)


_LOADED: dict[Path, ModuleType] = {}


def _definitions(path: Path) -> ModuleType:
    if path in _LOADED:
        return _LOADED[path]
    tree = ast.parse(path.read_text(), str(path))
    own = {n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    made = ModuleType(path.stem.replace("-", "_").replace(".", "_"))
    made.__file__ = str(path)
    sys.modules[made.__name__] = made
    for node in tree.body:
        if _defines(node, own):
            # An assignment may speak of what a demonstration made.
            with contextlib.suppress(
                *(() if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else (Exception,))
            ):
                code = compile(ast.Module([node], []), str(path), "exec")
                exec(code, made.__dict__)  # noqa: S102 - the file that was asked for
    _LOADED[path] = made
    return made


def _defines(node: ast.stmt, own: set[str]) -> bool:
    """Whether a statement at the top of a tutorial defines something, rather than shows what was defined."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return True
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        node.decorator_list = [
            d
            for d in node.decorator_list
            if "perf_report" not in ast.unparse(d) and "pytest" not in ast.unparse(d)
        ]
        return True
    if not isinstance(node, (ast.Assign, ast.If)):
        return False
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return not ({"torch"} & names and "DEVICE" in names) and not (
        isinstance(node, ast.Assign) and _calls(node) & _demonstrated(own)
    )


def _calls(node: ast.AST) -> set[str]:
    return {n.func.id for n in ast.walk(node) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}


def _demonstrated(own: set[str]) -> set[str]:
    return {name for name in own if not name.startswith(("is_", "supports_", "get_", "num_"))}


@contextmanager
def edited(name: str, changes: Sequence[tuple[str, str]], folder: Path) -> Iterator[ModuleType]:
    """A file of a checkout with some of its text replaced: the copy lies in `folder` for as long as this lasts.

    Raises:
        ValueError: a text to replace is not there exactly once.
    """
    path = _path(name)
    text = path.read_text()
    for old, new in changes:
        if text.count(old) != 1:
            raise ValueError(f"{name}: {old!r} stands there {text.count(old)} times")
        text = text.replace(old, new)
    copy = folder / path.name.replace("-", "_")
    copy.write_text(text)
    if not name.endswith(".py"):
        spec = importlib.util.spec_from_file_location(f"{name}_edited", copy)
        assert spec is not None
        assert spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        made.__package__ = name.rpartition(".")[0]
        spec.loader.exec_module(made)
    else:
        made = _definitions(copy)
    yield made


def _path(name: str) -> Path:
    if name.endswith(".py"):
        return _tutorials.folder / name
    return _FINDER.roots[name.partition(".")[0]].joinpath(*name.split(".")).with_suffix(".py")


def place(file: str) -> str:
    """A file's path within its checkout or package."""
    for root in (_tutorials.folder.parent.parent, *_FINDER.roots.values(), *_packages()):
        if Path(file).is_relative_to(root):
            return str(Path(file).relative_to(root))
    return f".../{Path(file).name}"  # made by a package, in a cache of its own


def _packages() -> list[Path]:
    """Where packages are installed."""
    return [
        Path(p).resolve() for p in sys.path if p and Path(p).is_dir() and Path(p) != Path(__file__).parent
    ]


Options = Mapping[str, Any]
Function = Callable[..., Any]
