"""A launch as one file of Python, which runs alone: the kernel with what it calls, and its inputs."""

from __future__ import annotations

import base64
import inspect
import textwrap
import types
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.runtime.jit import JITCallable

from tilefold.errors import CaptureError
from tilefold.xray.capture.launches import Launch
from tilefold.xray.compile.arguments import OF_DTYPE, Argument
from tilefold.xray.compile.job import Job

_LARGEST = (
    1 << 20
)  # bytes of memory that a file holds, compressed; of more it says the size, and random values are taken
_DTYPES = {"fp8e4b15": "uint8", **{kind: dtype for dtype, kind in OF_DTYPE.items()}}
_LONG = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_PLAIN = (bool, int, float, str, type(None))


def reproducer(launch: Launch) -> str:
    """The file's text.

    Raises:
        CaptureError: the kernel needs something that has no text (an object of the script's, a tuple of descriptors).
    """
    job = launch.job
    if job.source is not None:
        raise CaptureError(
            f"xray: a launch that is saved must have plain arguments, got tuples or descriptors in {launch.kernel}; "
            "its report is there all the same"
        )
    named: dict[str, str] = {}
    _collect(job.kernel, named, set())
    imports = [text for text in named.values() if text.startswith(("import ", "from "))]
    helpers = [text for text in named.values() if not text.startswith(("import ", "from "))]
    constants = {name: _value(value, launch) for name, value in job.constants}
    parts = [
        f'"""Launch {launch.number} of {launch.place}: {launch.kernel}, as `tilefold xray run` captured it.\n\n'
        f"    python FILE.py                          its report\n    tilefold xray FILE.py --case launch     the same"
        f'\n"""',
        "\n".join(["import base64", "import zlib", "", "import torch", *dict.fromkeys(imports)]),
        *helpers,
        textwrap.dedent(_HELPER).strip(),
        "\n".join(_case(launch, job, constants)),
        'if __name__ == "__main__":\n    from tilefold import xray\n'
        "    from tilefold.xray.render.plain import report_text\n\n"
        '    print(report_text(xray.explain(**xray_cases()["launch"])))',
    ]
    return "\n\n\n".join(parts) + "\n"


_HELPER = '''
def held(dtype, text, begin=0):
    """What was in memory at the launch, as a tensor; the kernel's pointer is to the element `begin`."""
    return torch.frombuffer(bytearray(zlib.decompress(base64.b85decode(text))), dtype=dtype)[begin:]
'''


def _case(launch: Launch, job: Job, constants: dict[str, str]) -> Iterator[str]:
    yield "def xray_cases():"
    shared: dict[Any, str] = {}
    texts = {a.name: _argument(a, shared) for a in job.arguments}
    yield "    args = {"
    yield from (f"        {name!r}: {text}," for name, text in texts.items())
    yield "    }"
    yield "    constants = {" + ", ".join(f"{n!r}: {v}" for n, v in constants.items()) + "}"
    options = dict(job.options)
    yield (
        f"    return {{'launch': dict(kernel={job.kernel.__name__}, args=args, constants=constants, grid={job.grid!r}, "
        f"num_warps={job.num_warps}, num_stages={job.num_stages}, target={job.chip.target!r}, options={options!r})}}"
    )


def _argument(argument: Argument, shared: dict[Any, str]) -> str:
    """An argument as `explain` takes it."""
    if argument.type == "none":
        return "None"
    promise = f"!div{argument.divisor}"
    if not argument.pointer:
        return repr(f"{argument.type}:{argument.value!r}{promise}")
    if argument.storage in shared and not argument.before:
        return repr(f"&{shared[argument.storage]}")
    shared.setdefault(argument.storage, argument.name)
    data = argument.data
    if data is None or not data.size:
        size = "" if argument.size is None else f"[{max(argument.size, 1)}]"
        return repr(f"*{argument.type}{size}{promise}")
    packed = zlib.compress(np.ascontiguousarray(data).tobytes(), 1)
    if len(packed) > _LARGEST:
        return (
            repr(f"*{argument.type}[{argument.size}]{promise}")
            + f"  # {data.nbytes} bytes were too many to keep"
        )
    text = base64.b85encode(packed).decode()
    return f"held(torch.{_DTYPES[argument.type]}, {text!r}, {argument.before})"


def _collect(kernel: Any, named: dict[str, str], seen: set[int]) -> None:
    """Texts of a kernel and of all that its globals name, callees first."""
    if id(kernel) in seen:
        return
    seen.add(id(kernel))
    function = kernel.fn
    scope = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
    for name in _names(function.__code__):
        if name in named or name not in scope or scope[name] is kernel:
            continue
        value = scope[name]
        if isinstance(value, JITCallable):
            _collect(value, named, seen)
            if value.fn.__name__ != name:
                named[name] = f"{name} = {value.fn.__name__}"
        elif (text := _global(name, value)) is not None:
            named[name] = text
    source = kernel.raw_src if isinstance(kernel.raw_src, str) else "".join(kernel.raw_src)
    text = textwrap.dedent(source)
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("def "))
    how = (
        "@triton.constexpr_function"
        if "Constexpr" in type(kernel).__name__
        else f"@triton.jit{_declared(kernel)}"
    )
    named["triton"], named["tl"] = "import triton", "import triton.language as tl"
    named[function.__name__] = "\n".join([how, *lines[first:]])


def _declared(kernel: Any) -> str:
    """What the decorator says of specialisation."""
    said = {
        n: list(v)
        for n in ("do_not_specialize", "do_not_specialize_on_alignment")
        if (v := getattr(kernel, n, None))
    }
    return f"({', '.join(f'{n}={v!r}' for n, v in said.items())})" if said else ""


def _names(code: types.CodeType) -> list[str]:
    """Names that a function's code reads, those of functions within it too."""
    inner = [n for c in code.co_consts if isinstance(c, types.CodeType) for n in _names(c)]
    return [*code.co_names, *code.co_freevars, *inner]


def _global(name: str, value: Any) -> str | None:
    """The line that gives a global its value; None where Triton does not see it."""
    if isinstance(value, types.ModuleType):
        return f"import {value.__name__} as {name}" if value.__name__.startswith(("triton", "math")) else None
    if isinstance(value, tl.constexpr):
        return f"{name} = tl.constexpr({_text(value.value)})" if _text(value.value) is not None else None
    if isinstance(value, (*_PLAIN, tl.dtype)):
        return f"{name} = {_text(value)}"
    module = getattr(value, "__module__", "") or ""
    called = getattr(value, "__qualname__", "")
    if module.startswith("triton") and called.isidentifier():
        return f"from {module} import {called} as {name}"
    return None


def _text(value: Any) -> str | None:
    """A value as Python writes it."""
    if isinstance(value, tl.dtype):
        return f"tl.{_LONG.get(value.name, value.name)}"
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f"float({str(value)!r})"
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, tuple | list) and all(_text(v) is not None for v in value):
        return "(" + "".join(f"{_text(v)}, " for v in value) + ")"
    return None


def _value(value: Any, launch: Launch) -> str:
    """A constant of a launch.

    Raises:
        CaptureError: it has no text.
    """
    if isinstance(value, triton.JITFunction):
        return str(value.fn.__name__)
    value = value.value if isinstance(value, tl.constexpr) else value
    text = _text(value)
    if text is None:
        raise CaptureError(
            f"xray: a constant that is saved must be a number, a text or a type, got {value!r} in {launch.kernel}; "
            "its report is there all the same"
        )
    return text
