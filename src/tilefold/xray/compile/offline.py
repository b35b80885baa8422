"""The one place of the X-ray that has Triton compile, for a chip that need not be there (`capture` is its driver).

What is private to Triton and used here: `ASTSource` and `triton.compile`, which assembler it takes, the disassembler, the
cache and the hook on stages in `triton.knobs`, and names of metadata. Everything else is read from text.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource
from triton.compiler.errors import CompilationError

from tilefold.errors import ArgumentError, CompileError
from tilefold.xray.compile.arguments import Argument, argument
from tilefold.xray.compile.job import Compiled, Job, Machine, Resources

_USAGE = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


def jitted(kernel: Any) -> Any:
    """The kernel under the decorators that choose configurations (`autotune`, `heuristics`).

    Raises:
        ArgumentError: there is no kernel.
    """
    inner = kernel
    while not isinstance(inner, triton.JITFunction) and hasattr(inner, "fn"):
        inner = inner.fn
    if not isinstance(inner, triton.JITFunction):
        raise ArgumentError(
            f"xray: a kernel must be decorated with triton.jit, got {type(kernel).__name__}; name the decorated function"
        )
    return inner


def complete_constants(
    kernel: Any, arguments: Sequence[Argument], constants: dict[str, Any]
) -> tuple[tuple[Argument, ...], dict[str, Any]]:
    """Arguments in the kernel's order and constants, with their defaults.

    Raises:
        ArgumentError: a name that the kernel lacks, or one of its own that is missing.
    """
    given = {a.name: a for a in arguments}
    fixed = [p.name for p in kernel.params if p.is_constexpr]
    ordinary = [p.name for p in kernel.params if not p.is_constexpr]
    _refuse("--arg", set(given) - set(ordinary), ordinary, kernel)
    _refuse("--const", set(constants) - set(fixed), fixed, kernel)
    defaults = {p.name: p.default for p in kernel.params if p.has_default}
    constants = {n: constants.get(n, defaults.get(n)) for n in fixed if n in constants or n in defaults}
    given |= {n: argument(n, defaults[n]) for n in ordinary if n in defaults and n not in given}
    _require(kernel, [n for n in fixed if n not in constants], [n for n in ordinary if n not in given])
    return tuple(_specialised(p, given[p.name]) for p in kernel.params if not p.is_constexpr), constants


def _require(kernel: Any, constants: Sequence[str], arguments: Sequence[str]) -> None:
    """All that a kernel's parameters lack, in one message."""
    name, options = kernel.__name__, " ".join(f"--const {n}=..." for n in constants)
    rules = (
        [f"every tl.constexpr of {name!r} must have a value, got none for {', '.join(constants)}"]
        if constants
        else []
    )
    if arguments:
        rules.append(f"every parameter of {name!r} must have a type, got none for {', '.join(arguments)}")
        options += f"{' and ' * bool(constants)}--arg {arguments[0]}=*fp32 or {arguments[0]}=i32:1000"
        options += ", and so on" if len(arguments) > 1 else ""
    if rules:
        raise ArgumentError(f"xray: {', and '.join(rules)}; add {options}")


def _specialised(parameter: Any, argument: Argument) -> Argument:
    """The argument without what the kernel declares that its code must not depend on."""
    if parameter.do_not_specialize:
        return replace(argument, divisor=1, special=False)
    return replace(argument, divisor=1) if parameter.do_not_specialize_on_alignment else argument


def _refuse(option: str, strangers: set[str], known: list[str], kernel: Any) -> None:
    if strangers:
        raise ArgumentError(
            f"xray: {option} must name one of {kernel.__name__}'s parameters {', '.join(known) or '(none)'}, "
            f"got {', '.join(sorted(strangers))}; check the spelling, and which parameters are tl.constexpr"
        )


def compile_job(job: Job) -> Compiled:
    """Compile a kernel for the job's chip.

    Raises:
        CompileError: Triton or the assembler refuses it; the message is theirs.
    """
    return _compile(job, _source(job))


def recompile(compiled: Compiled, ttir: str) -> Compiled:
    """The same job from other TTIR: what the compiler would have made, had it known or seen something else.

    Raises:
        CompileError: the text does not compile.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ttir"
        path.write_text(ttir)
        return _compile(compiled.job, str(path))


def _compile(job: Job, source: Any) -> Compiled:
    try:
        with cache_of(job.kernel), without_machine_code():
            made = _made(job, source)
    except OSError as error:
        raise CompileError(
            f"xray: what Triton compiles must go into a folder that can be written, got {error}; set TRITON_CACHE_DIR to one"
        ) from error
    except Exception as error:  # whatever Triton raises says why it refuses this kernel
        raise CompileError(
            f"xray: {job.name} must compile for {job.chip.target}, got {_said(error)}"
        ) from error
    texts, metadata = made.asm, made.metadata
    return Compiled(
        job, texts["ttir"], texts["ttgir"], _steady_lines(texts["ptx"]), max(metadata.shared, job.shared), metadata.num_warps,
        getattr(metadata, "global_scratch_size", 0) or 0, triton.__version__, texts["llir"],
    )  # fmt: skip


def _made(job: Job, source: Any) -> Any:
    """What Triton makes of a source for the job's chip."""
    # Triton's default of fusing a*b+c changes with 3.10; here it is on unless the job says otherwise.
    fixed = {"num_warps": job.num_warps, "num_stages": job.num_stages, "enable_fp_fusion": True}
    target = GPUTarget("cuda", job.chip.architecture, 32)
    return triton.compile(source, target=target, options=fixed | dict(job.options))


@contextlib.contextmanager
def cache_of(kernel: Any) -> Iterator[None]:
    """A place in Triton's cache for the kernel's file alone.

    Triton knows a kernel by its text, and the lines in its cache name the file that was compiled first with that text.
    """
    file = inspect.getsourcefile(getattr(kernel, "fn", None) or cache_of) or ""
    with triton.knobs.cache.scope():
        part = hashlib.sha256(os.path.abspath(file).encode()).hexdigest()[:16]
        outer, inner = os.path.split(triton.knobs.cache.dir)
        triton.knobs.cache.dir = os.path.join(
            outer, *[inner] * (not inner.startswith("xray-")), f"xray-{part}"
        )
        yield


@contextlib.contextmanager
def without_machine_code() -> Iterator[None]:
    """Triton stops at the PTX: `assemble` makes the machine code, and what is only compared needs none."""
    held = triton.knobs.runtime.add_stages_inspection_hook
    triton.knobs.runtime.add_stages_inspection_hook = _stop_at_ptx
    try:
        yield
    finally:
        triton.knobs.runtime.add_stages_inspection_hook = held


def _stop_at_ptx(*given: Any) -> tuple[str, str] | None:
    """Triton's hook on its stages: without arguments (since 3.7) what it adds to the key of the cache."""
    if not given:
        return "without machine code", "without machine code"
    stages: dict[str, Any] = given[1]
    stages["cubin"] = lambda source, metadata: b""
    return None


def _said(error: Exception) -> str:
    """Triton's message: of a chain of calls the innermost that names a line."""
    while isinstance(error.__cause__, CompilationError):
        error = error.__cause__
    return f"{type(error).__name__}: {error}".strip()


def _source(job: Job) -> Any:
    """What Triton compiles: the job's own source, or its kernel with the types and constants of its arguments."""
    if job.source is not None:
        return job.source
    kernel = jitted(job.kernel)
    names = list(kernel.arg_names)
    signature = {a.name: "constexpr" if a.constant else a.signature for a in job.arguments}
    signature |= {name: "constexpr" for name, _ in job.constants}
    constants = dict(job.constants) | {a.name: a.value for a in job.arguments if a.constant}
    attributes = {
        (names.index(a.name),): [["tt.divisibility", a.divisor]]
        for a in job.arguments
        if a.divisor > 1 and not a.constant
    }
    ordered = {name: signature[name] for name in names}
    return ASTSource(fn=kernel, signature=ordered, constexprs=constants, attrs=attributes)


def passes(job: Job) -> list[tuple[str, str]]:
    """Each pass of Triton's compiler up to the GPU IR, and the IR before it, in order; none where this Triton dumps none.

    The kernel is compiled once more, into a folder of its own; what Triton says meanwhile is not shown. LLVM's passes are not
    among them: Triton's switch for these (LLVM_IR_ENABLE_DUMP) cannot be put back, and every later compilation would dump.
    """
    with tempfile.TemporaryFile() as dump:
        with _dumping(dump.fileno()), contextlib.suppress(_DumpedError):
            _made(job, _source(job))
        dump.seek(0)
        text = dump.read().decode(errors="replace")
    # Between passes some say more, under such a head too.
    parts = re.split(r"^// -----// (.*?)(?: //----- //)?$", text, flags=re.MULTILINE)
    pairs = zip(parts[1::2], parts[2::2], strict=True)
    return [(head.removeprefix(_BEFORE), ir.strip("\n")) for head, ir in pairs if head.startswith(_BEFORE)]


_BEFORE = "IR Dump Before "


class _DumpedError(Exception):
    """The stages of interest are over."""


@contextlib.contextmanager
def _dumping(file: int) -> Iterator[None]:
    """MLIR writes the IR before every pass, which it does to stderr, into a file; Triton stops at the GPU IR."""

    def stop(*given: Any) -> tuple[str, str] | None:
        if not given:
            return "passes", "passes"
        given[1]["llir"] = ended
        return None

    def ended(source: Any, metadata: Any) -> Any:
        raise _DumpedError

    before, hook = os.environ.get("MLIR_ENABLE_DUMP"), triton.knobs.runtime.add_stages_inspection_hook
    sys.stderr.flush()
    errors = os.dup(2)
    try:
        os.environ["MLIR_ENABLE_DUMP"] = "1"
        os.dup2(file, 2)
        with triton.knobs.cache.scope(), tempfile.TemporaryDirectory() as folder:
            triton.knobs.cache.dir = folder
            triton.knobs.runtime.add_stages_inspection_hook = stop
            yield
    finally:
        triton.knobs.runtime.add_stages_inspection_hook = hook
        os.dup2(errors, 2)
        os.close(errors)
        del os.environ["MLIR_ENABLE_DUMP"]
        os.environ.update({} if before is None else {"MLIR_ENABLE_DUMP": before})


def assemble(compiled: Compiled) -> Machine:
    """The machine code and what it occupies: registers, spills and stack, in bytes a thread.

    Assembled here again, with Triton's options, from the PTX whose lines are the source's.
    """
    said, code = _assembled(compiled.ptx, compiled.job.chip.architecture, _fuses(compiled), True)
    return Machine(_resources(said, compiled), code)


def resources(compiled: Compiled) -> Resources:
    """The resources of the machine code, without the code: to disassemble takes several times as long as to assemble."""
    said, _ = _assembled(compiled.ptx, compiled.job.chip.architecture, _fuses(compiled), False)
    return _resources(said, compiled)


def _fuses(compiled: Compiled) -> bool:
    return bool(dict(compiled.job.options).get("enable_fp_fusion", True))


def _resources(said: str, compiled: Compiled) -> Resources:
    found, registers = _USAGE.search(said), re.search(r"Used (\d+) registers", said)
    static = re.search(
        r"(\d+) bytes smem", said
    )  # what the code itself declares, beside what it is launched with
    if found is None or registers is None:
        raise CompileError(f"xray: the assembler must report resources, got {said!r}; check triton's ptxas")
    stack, stores, loads = (int(n) for n in found.groups())
    shared = compiled.shared + (int(static[1]) if static else 0)
    return Resources(int(registers[1]), stores, loads, stack, shared)


@functools.lru_cache(maxsize=64)
def _assembled(ptx: str, architecture: int, fusing: bool, disassemble: bool) -> tuple[str, str]:
    """The assembler's output, and the disassembled code if it is asked for."""
    target = f"sm_{architecture}{'a' if architecture >= 90 else ''}"
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(ptx)
        options = ["-v", "-lineinfo", *([] if fusing else ["--fmad=false"]), f"--gpu-name={target}"]
        said = _run([_assembler(architecture), *options, str(source), "-o", str(made)])
        if not disassemble:
            return said, ""
        return said, _run([str(triton.knobs.nvidia.nvdisasm.path), "-gi", "-c", str(made)])


def _steady_lines(ptx: str) -> str:
    """The PTX without `.loc` inside of inline assembly, where newer LLVMs count a source line further for each of its rows.

    Rows keep their numbers.
    """
    inside, rows = False, []
    for row in ptx.split("\n"):
        inside = (inside or "// begin inline asm" in row) and "// end inline asm" not in row
        rows.append("" if inside and row.lstrip().startswith(".loc") else row)
    return "\n".join(rows)


@functools.cache
def _assembler(architecture: int) -> str:
    """The one that Triton itself takes for an architecture: which that is changes with its versions."""
    return str(get_ptxas(architecture).path)


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CompileError(f"xray: {Path(command[0]).name} must accept the kernel, got {done.stderr.strip()}")
    return done.stdout + done.stderr
