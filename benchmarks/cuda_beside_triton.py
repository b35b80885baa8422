"""Kernels as readable CUDA beside Triton's own, on a GPU: the same bits, and the median time of each.

python benchmarks/cuda_beside_triton.py prepare DIR [--target sm_90]   needs Triton and nvcc, no GPU
python benchmarks/cuda_beside_triton.py run DIR                        needs a GPU, numpy and CuPy; no Triton, no tilefold

`prepare` compiles twenty kernels (tests/xray/cuda/kernels.py, the case book): Triton's PTX by its assembler as Triton calls
it, and once more without fusion, and the readable file by nvcc. `run` launches all from one launcher on the same data,
compares every byte of every array afterwards, times Triton's and CUDA's in turns, and writes DIR/results.json and a table.
Where the assembler fuses a product with a sum that PTX writes apart (a division's last product), Triton's bits are other
than its PTX says: "fused". A kernel whose bits are not those of its PTX has no time.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
ROUNDS = 200
FLUSHED = 256 << 20  # bytes
OWN, BOOK = "tests/xray/cuda/kernels.py", "examples/casebook/kernels.py"
ROWS = 4096
KEYS = ("triton_us", "cuda_us", "ratio")
KINDS = ("triton", "apart", "cuda")


def _floats(size: int, **more: Any) -> dict[str, Any]:
    return {"x_ptr": f"*fp32[{size}]", "y_ptr": f"*fp32[{size}]", **more}


def _halves(m: int, n: int, k: int) -> dict[str, Any]:
    args = {"a_ptr": f"*fp16[{m * k}]", "b_ptr": f"*fp16[{k * n}]", "c_ptr": f"*fp32[{m * n}]"}
    return {"args": {**args, "M": m, "N": n, "K": k}, "grid": (m // 64, n // 64)}


_N = 1 << 24
_QUERIES = {f"{x}_ptr": "*fp16[262144]" for x in "qkv"} | {
    "o_ptr": "*fp32[262144]",
    "n": 4000,
    "scale": "fp32:0.125",
}
# A file, a case, and what is larger here than there.
KERNELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "copy": (BOOK, "copy", {"args": _floats(_N, n=_N - 24), "grid": _N // 128}),
    "copy, 1 warp": (BOOK, "copy, 1 warp", {"args": _floats(_N, n=_N - 24), "grid": _N // 128}),
    "copy, 16 warps": (BOOK, "copy, 16 warps", {"args": _floats(_N, n=_N - 24), "grid": _N // 128}),
    "loop": (BOOK, "loop", {"args": _floats(1 << 18, n=250_000)}),
    "matrix": (BOOK, "matrix", {"args": _floats(_N, rows=_N // 32 - 9), "grid": _N // 4096}),
    "hinted": (BOOK, "hinted", {"args": _floats(_N, n=_N - 24), "grid": _N // 128}),
    "split": (BOOK, "split", {"args": _floats(1 << 18, n=250_001)}),
    "atomic sum": (BOOK, "atomic sum", {"args": _floats(1 << 20, n=1_000_000), "grid": (1 << 20) // 128, "whole": True}),
    "transpose, tiles": (BOOK, "transpose, tiles", {}),
    "softmax": (OWN, "softmax", {"args": {"out_ptr": f"*fp32[{ROWS * 781}]", "x_ptr": f"*fp32[{ROWS * 781}]"}, "grid": ROWS}),
    "layer norm": (OWN, "layer norm", {"args": _floats(ROWS * 781), "grid": ROWS}),
    "tiled transpose": (
        OWN, "tiled transpose", {"args": _floats(2000 * 3001, m=2000, n=3001), "grid": (63, 94)},
    ),
    "ragged": (
        OWN, "ragged", {"args": {"x_ptr": f"*fp32[{_N}]", "starts_ptr": "*i32[4097]", "y_ptr": "*fp32[4096]"}, "grid": ROWS},
    ),
    "scan of pairs": (OWN, "scan of pairs", {"args": {f"{x}_ptr": "*fp32[512]" for x in "aby"}}),
    "matmul": (OWN, "matmul", _halves(1024, 1024, 1024)),
    "matmul of four warps": (OWN, "matmul of four warps", _halves(1024, 1024, 1024)),
    "attention of four warps": (OWN, "attention of four warps", {"args": _QUERIES, "grid": 62}),
    "welford norm": (OWN, "welford norm", {"args": _floats(ROWS * 781), "grid": ROWS}),
    "dequant": (
        OWN, "dequant",
        {
            "args": {"q_ptr": "*u8[4000000]", "scale_ptr": "*fp32[250000]", "y_ptr": "*fp16[8000000]", "n": 8_000_000},
            "grid": 15_625,
        },
    ),
    "sines": (OWN, "sines", {}),
}  # fmt: skip


def prepare(folder: Path, target: str) -> None:
    """Both codes of each kernel, and what its launch needs."""
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
    from triton.backends.nvidia.compiler import get_ptxas

    from tilefold.xray.compile.offline import compile_job
    from tilefold.xray.compile.source import load_file
    from tilefold.xray.cuda.readable import readable
    from tilefold.xray.cuda.translate import read_line
    from tilefold.xray.explain import make_job
    from tilefold.xray.ptx import parse

    folder.mkdir(parents=True, exist_ok=True)
    for name, (file, case, larger) in KERNELS.items():
        given = dict(load_file(ROOT / file).xray_cases()[case])
        args = {**given.pop("args"), **larger.get("args", {})}
        given |= {k: v for k, v in larger.items() if k == "grid"} | {"target": target}
        made = compile_job(make_job(given.pop("kernel"), args, given.pop("constants"), **given))
        (entry,) = parse(made.ptx).entries
        arch = parse(made.ptx).target[0]
        stem = folder / name.replace(", ", "-").replace(" ", "_")
        stem.with_suffix(".ptx").write_text(made.ptx)
        stem.with_suffix(".cu").write_text(readable(made, read_line))
        ptxas = str(get_ptxas(made.job.chip.architecture).path)
        cubins = {kind: f"{stem}.{kind}.cubin" for kind in KINDS}
        for command in (
            [ptxas, f"-arch={arch}", f"{stem}.ptx", "-o", cubins["triton"]],
            [ptxas, f"-arch={arch}", "--fmad=false", f"{stem}.ptx", "-o", cubins["apart"]],
            ["nvcc", f"-arch={arch}", "-fmad=false", "-w", "-cubin", f"{stem}.cu", "-o", cubins["cuda"]],
        ):
            subprocess.run(command, check=True)
        arguments = [
            {"name": a.name, "type": a.type, "size": a.size, "value": a.value, "pointer": a.pointer}
            for a in made.parameters
        ]
        launch = {
            "name": name, "entry": entry.name, "grid": made.job.grid, "threads": entry.threads, "shared": made.shared,
            "arguments": arguments, "hidden": len(entry.parameters) - len(arguments), "whole": larger.get("whole", False),
        }  # fmt: skip
        stem.with_suffix(".json").write_text(json.dumps(launch, indent=1))
        print(name, flush=True)


def run(folder: Path) -> None:
    """Launch, compare, time."""
    import cupy

    device = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    rows = []
    for path in sorted(folder.glob("*.json")):
        if path.name == "results.json":
            continue
        launch = json.loads(path.read_text())
        row: dict[str, Any] = {"kernel": launch["name"]}
        stored, calls = [], []
        for kind in KINDS:
            call, arrays = _launcher(cupy, launch, f"{path.with_suffix('')}.{kind}.cubin")
            call()
            cupy.cuda.Device().synchronize()
            stored.append([a.tobytes() for a in map(cupy.asnumpy, arrays)])
            calls.append(call)
        triton, apart, cuda = stored
        row["bits"] = "differ" if apart != cuda else "equal" if triton == cuda else "fused"
        if row["bits"] != "differ":
            row["triton_us"], row["cuda_us"] = (round(t, 2) for t in _times(cupy, calls[::2]))
            row["ratio"] = round(row["cuda_us"] / row["triton_us"], 3)
        rows.append(row)
        print(json.dumps(row), flush=True)
    ratios = [r["ratio"] for r in rows if "ratio" in r]
    found = {
        "device": device,
        "date": datetime.date.today().isoformat(),
        "rounds": ROUNDS,
        "median_ratio": statistics.median(ratios) if ratios else None,
        "rows": rows,
    }
    (folder / "results.json").write_text(json.dumps(found, indent=1) + "\n")
    print("| kernel | bits | Triton, us | CUDA, us | ratio |\n| --- | --- | ---: | ---: | ---: |")
    for row in rows:
        print(f"| {row['kernel']} | {row['bits']} | " + " | ".join(str(row.get(k, "")) for k in KEYS) + " |")


def _launcher(cupy: Any, launch: dict[str, Any], cubin: str) -> tuple[Any, list[Any]]:
    """A function that launches the kernel, and its arrays, filled as for any other code of it."""
    import numpy

    random = numpy.random.default_rng(7)
    arrays, values = [], []
    for argument in launch["arguments"]:
        if argument["pointer"]:
            arrays.append(cupy.asarray(_data(random, argument, launch["whole"])))
            values.append(numpy.uint64(arrays[-1].data.ptr))
        else:
            kind = {"i": numpy.dtype("i4"), "f": numpy.dtype("f4")}[argument["type"][0]]
            kind = numpy.dtype("i8") if argument["type"] == "i64" else kind
            values.append(kind.type(argument["value"]))
    values += [numpy.uint64(0)] * launch["hidden"]
    kernel = cupy.RawModule(path=cubin).get_function(launch["entry"])
    if launch["shared"] > 48 << 10:
        kernel.max_dynamic_shared_size_bytes = launch["shared"]
    grid = tuple(launch["grid"])
    return (lambda: kernel(grid, (launch["threads"],), tuple(values), shared_mem=launch["shared"])), arrays


def _data(random: Any, argument: dict[str, Any], whole: bool) -> Any:
    """Numbers for an array; whole ones where sums must not depend on their order; sorted where others begin there."""
    import numpy

    size = argument["size"]
    match argument["type"]:
        case "fp32":
            held = random.standard_normal(size, dtype=numpy.float32)
            return numpy.rint(held) if whole else held
        case "fp16":
            return random.standard_normal(size, dtype=numpy.float32).astype(numpy.float16)
        case "i32":
            return numpy.sort(random.integers(0, 1 << 24, size, dtype=numpy.int32))
    return random.integers(0, 256, size, dtype=numpy.uint8)


def _times(cupy: Any, calls: list[Any]) -> list[float]:
    """The median time of each in microseconds; they take turns, with an empty L2 and behind a fill that hides the launch."""
    taken: list[list[float]] = [[] for _ in calls]
    flushed = cupy.empty(FLUSHED, dtype="u1")
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    for turn in range(ROUNDS + 20):
        for k, call in enumerate(calls):
            flushed.fill(turn % 2)
            begin.record()
            call()
            end.record()
            end.synchronize()
            if turn >= 20:
                taken[k].append(cupy.cuda.get_elapsed_time(begin, end) * 1e3)
    return [statistics.median(t) for t in taken]


def main() -> None:
    """Prepare, or run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("prepare", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", default="sm_90")
    options = parser.parse_args()
    if options.what == "prepare":
        prepare(options.folder, options.target)
    else:
        run(options.folder)


if __name__ == "__main__":
    main()
