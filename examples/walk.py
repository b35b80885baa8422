"""The walk of `make demo`: three monoids on real data with their plans, what else there is of their kind, a real checkpoint
described, a skinny product of its tables, kernels X-rayed, transposes and atomic sums, two models trained, then the
speed.

Everything that is shown is computed here, checked against an independent answer, and runs without a GPU; what was measured
elsewhere says so. Each part is an example of its own beside this file.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

import torch
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text
from safetensors.torch import save_file

import tilefold
from tilefold.checkpoints.describe import FileReport, describe_file
from tilefold.checkpoints.tables import plural, render_report

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "benchmarks")]
from shown import WIDTH, console, heading, label, say, show_plan  # noqa: E402  # beside this file


def source_of(module: ModuleType) -> str:
    """The part of an example that makes its monoid."""
    text = Path(str(module.__file__)).read_text(encoding="utf-8")
    text = text.partition("# --8<-- the monoid\n")[2].partition("# -->8--")[0].strip()
    text = re.sub(r"  # type: ignore.*", "", text)  # for the type checker, not for a reader
    return text.replace("\n\n\n", "\n\n")


def show_source(title: str, what: str, module: ModuleType) -> None:
    """What an example is and why, and its own part as it is written."""
    heading(title)
    say(str(module.__doc__).partition("\n\n")[2])
    label(f"{what} (examples/{Path(str(module.__file__)).name})")
    highlighted = Syntax("", "python", theme="ansi_dark").highlight(source_of(module))
    console.print(
        Text.assemble(*[line for part in highlighted.split() for line in ("  ", part, "\n")]), end=""
    )


def show_run(title: str, module: ModuleType) -> None:
    """What an example gives; it prints that itself."""
    label(title)
    sys.stdout.flush()
    module.main()


def show_fold(title: str, module: ModuleType) -> None:
    """One fold: its monoid, what it gives, and how it runs."""
    show_source(title, "The monoid", module)
    show_run("The fold, on this machine", module)
    inputs, monoid, dim = module.call()
    show_plan("Its plan here", tilefold.last_plan())
    if not torch.cuda.is_available():
        show_plan("Its plan on an H200 (planned here, not run)", tilefold.explain_plan(inputs, monoid, dim))


def folds() -> None:
    """The three examples, and after each what else there is of its kind."""
    import longest_run
    import online_softmax_pair
    import operations
    import or_of_bit_masks
    import small_axis

    show_fold("1. OR of packed bit masks: a fold torch does not have", or_of_bit_masks)
    show_part("2. OR, AND, XOR over any axis, and over a short one", small_axis)
    show_fold("3. The online softmax pair: a state of two numbers", online_softmax_pair)
    watch(online_softmax_pair.softmax_pair, tilefold.monoids.WELFORD)
    show_part("4. Reductions and online algorithms", operations)
    show_fold("5. The longest run: order matters", longest_run)


def show_part(title: str, module: ModuleType) -> None:
    """An example that shows what it does by itself."""
    heading(title)
    say(str(module.__doc__))
    module.main()


def watch(*monoids: tilefold.Monoid) -> None:
    """Pages to open in a browser."""
    from tilefold.watch import render_page

    label("To watch it in a browser, chunk by chunk, and any other monoid (tilefold watch)")
    for monoid in monoids:
        path = HERE.parent / "build" / f"{monoid.name}.html"
        path.parent.mkdir(exist_ok=True)
        path.write_text(render_page(monoid), encoding="utf-8", newline="\n")
        console.print(Text(f"  {os.path.relpath(path)}", style="cyan"))


def describe() -> None:
    """One pass over each tensor of a checkpoint, then over one that has gone wrong."""
    import real_data

    path, real = real_data.checkpoint()
    heading(f"6. tilefold describe: what is in {path.name}")
    if not real:
        say("The demo's checkpoint is not installed (make demo does it); a small one stands in.", "yellow")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    start = time.perf_counter()
    report = describe_file(path, device)
    seconds = time.perf_counter() - start
    largest = sorted(report.tensors, key=lambda t: -t.count)[:8]
    place = "the GPU" if device == "cuda" else "the CPU"
    say(
        "Nine statistics of every tensor in one pass: a state counts elements, NaN, inf and zeros, and carries min, max, "
        f"mean and spread. {plural(len(report.tensors), 'tensor')}, {path.stat().st_size / 1e6:.0f} MB, in {seconds:.2f} s "
        f"on {place}. The {len(largest)} largest:"
    )
    console.print()
    console.print(render_report(FileReport(path.name, tuple(largest)), WIDTH))
    biggest = torch.empty(largest[0].shape, dtype=getattr(torch, largest[0].dtype), device="meta")
    plan = tilefold.explain_plan(biggest, tilefold.monoids.DESCRIBE)
    show_plan(f"The plan of {largest[0].name} on an H200", plan)
    console.print()
    say("And a file that has gone wrong, which `tilefold describe --fail-on-nan` answers with exit code 1:")
    console.print()
    console.print(render_report(spoiled(), WIDTH))


def spoiled() -> FileReport:
    """The report of two small tensors, one with a NaN and an infinity."""
    weight = torch.linspace(-1, 1, 384 * 8).reshape(8, 384)
    weight[3, 14], weight[5, 9] = float("nan"), float("inf")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "after-step-9000.safetensors"
        save_file({"decoder.bias": torch.zeros(384), "decoder.weight": weight}, path)
        report = describe_file(path)
    return FileReport(path.name, report.tensors)


def product() -> None:
    """A matmul with few results, and what is done to them in its store."""
    import five_ways
    import skinny_product

    show_source("7. A skinny product: a matmul is a fold too", "What follows the product", skinny_product)
    show_run("The product, on this machine", skinny_product)
    operands, follows = skinny_product.call()
    plan = tilefold.explain_plan(operands, tilefold.matmul, **follows)
    show_plan("Its plan on an H200 (planned here, not run)", plan)
    show_part("8. The same kind of product in five other ways", five_ways)


def xray() -> None:
    """A kernel with a fault, compiled and executed without a GPU."""
    try:
        import wrong_fill

        from tilefold.xray import explain_fold
        from tilefold.xray.render.terminal import render_observations, render_summary
    except ImportError:
        heading("9. The X-ray")
        say(
            "Triton is not installed (it is made for Linux), and the X-ray looks at what Triton compiles.",
            "yellow",
        )
        return
    show_source("9. The X-ray: what the compiler made of a kernel", "The kernel", wrong_fill)
    report = wrong_fill.main()
    label("What became of it")
    console.print(Padding(render_summary(report), (0, 0, 0, 2)))
    label("What to change")
    for part in render_observations(report):
        console.print(Padding(part, (0, 0, 0, 2)))
    own = [code for report in explain_fold("max dim=1 64x1000 fp32") for code in report.codes()]
    say(f"tilefold's own maximum of such rows, 64x1000 fp32: {', '.join(own) or 'nothing found'}.")
    say(
        "`tilefold xray examples/wrong_fill.py --case largest` shows every line: layouts, sectors, instructions."
    )


def compiled() -> None:
    """What became of small kernels, and of naive transposes and atomic sums."""
    import explained
    import transposes

    show_part("10. The case book: fifteen kernels explained", explained)
    show_part("11. Transposes and atomic sums", transposes)


def training() -> None:
    """A model and a recurrence that learn."""
    import gpt
    import recurrence

    show_part("12. A small GPT, by torch's modules and by these", gpt)
    show_part("13. A gated linear recurrence, trained through a scan", recurrence)


def speed() -> None:
    """Timed here where a GPU is present, else the committed results."""
    if torch.cuda.is_available():
        heading(f"14. Against torch, timed now on this {torch.cuda.get_device_name()}")
        timed_here()
    else:
        committed()


def timed_here() -> None:
    """Headline folds: answers compared first, then medians."""
    from triton.testing import do_bench

    x = torch.randn(16384, 8192, device="cuda", dtype=torch.bfloat16)
    table = Table("fold of 16384x8192 bf16", "tilefold us", "torch us")
    for name in ("sum", "argmax", "logsumexp", "var"):
        for dim in (1, 0):
            ours, theirs = getattr(tilefold, name), getattr(torch, name)
            torch.testing.assert_close(ours(x, dim=dim), theirs(x, dim=dim), rtol=2e-2, atol=2.0)
            times = [
                1e3 * do_bench(lambda f=f, d=dim: f(x, dim=d), return_mode="median") for f in (ours, theirs)
            ]
            table.add_row(f"{name} dim {dim}", *(f"{t:.1f}" for t in times))
    console.print(table)


def committed() -> None:
    """The headline rows of the committed run."""
    import readme
    import readme_tables

    heading("14. Against torch: results measured elsewhere, committed here")
    results = readme.load()
    say(
        f"No GPU here. Measured on {readme_tables.provenance(results)}, with `{readme_tables.command_text(results.runs[0])}`."
    )
    say(
        "Of the limit: 1.00 would be the bytes at the chip's copy bandwidth plus the launches, and nothing else."
    )
    lines = readme.table(results)
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for position, name in enumerate(lines[0]):
        table.add_column(name, justify="left" if position < 2 else "right", no_wrap=True)
    for line in lines[1:]:
        table.add_row(*line)
    console.print()
    console.print(table)
    console.print()
    for sentence in readme.sentences(results):
        say(sentence)


def main() -> None:
    """The whole walk."""
    console.print(Text("tilefold: write a reduction once, fold any tensor with it", style="bold"))
    say(
        "A fold needs four things: how an element becomes a state (lift), how two neighbouring states become one "
        "(combine), the state of nothing (identity), and what the last state says (project). That is a monoid. The "
        "functions below are traced once; from the trace come GPU kernels, CPU code and a check of the monoid's laws."
    )
    folds()
    describe()
    product()
    xray()
    compiled()
    training()
    speed()
    heading("Next")
    say(
        "README.md: ten lines of use. docs/algebra.md: how to write a monoid. `tilefold describe FILE`: your own files. "
        "`tilefold xray FILE.py::kernel`: your own kernels. `tilefold watch FILE.py::name --html OUT.html`: your own monoids."
    )


if __name__ == "__main__":
    main()
