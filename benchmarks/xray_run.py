"""The table of docs/xray-run.md: public scripts run by `tilefold xray run`, unmodified, each in a process of its own.

python benchmarks/xray_run.py [--seconds N] DIR [NAME...]: DIR holds a checkout of each project, named as the project; what
the scripts import must be importable. A row a script on the output; what each script printed is in DIR/out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

PYTEST = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider")
# Project: its repository, the folder that scripts import from, the scripts.
SCRIPTS: dict[str, tuple[str, str, tuple[tuple[str, ...], ...]]] = {
    "practice-triton": ("daemyung/practice-triton", ".", tuple((f"{n}.py",) for n in (
        "vector_add", "matmul", "block_ptr", "relu", "argmax", "atomic", "dropout", "reduction"))),
    "triton_docs_tutorials": ("evintunador/triton_docs_tutorials", ".", (
        ("04_vector_addition/vector_addition.py",), ("05_fused_softmax/fused_softmax.py",), ("06_matmul/matmul.py",),
        ("07_dropout/dropout.py",), ("08_layernorm/layernorm.py",), ("09_flash_attention/flash_attention.py",),
        ("10_CEloss_project/celoss.py",))),
    "ml-cross-entropy": ("apple/ml-cross-entropy", ".", (
        (*PYTEST, "tests/test_cce_indexed_dot.py"), (*PYTEST, "tests/test_cce_lse.py"))),
    "FlagAttention": ("FlagOpen/FlagAttention", "src", (
        ("examples/flash_attention_example.py",), ("examples/piecewise_example.py",))),
    "flashattention2-custom-mask": ("alexzhang13/flashattention2-custom-mask", ".", (("test_benchmark.py",),)),
    "optimi": ("warner-benjamin/optimi", ".", ((*PYTEST, "tests/test_optimizers.py", "-k", "triton"),)),
    "linghe": ("inclusionAI/linghe", ".", (("tests/test_norm.py",), ("tests/test_topk.py",), ("tests/test_rope.py",))),
    "Triformer": ("dame-cell/Triformer", ".", tuple((*PYTEST, f"tests/test_{n}.py") for n in (
        "softmax", "cross_entropy", "layernorm"))),
    "triton_kernels_for_fun_and_profit": ("lessw2020/triton_kernels_for_fun_and_profit", ".", (
        (*PYTEST, "tests/test_softmax.py"), (*PYTEST, "tests/test_rmsnorm.py"))),
    "scattermoe": ("shawntan/scattermoe", ".", ((*PYTEST, "tests/test_mlp.py"),)),
    "mlstm_kernels": ("NX-AI/mlstm_kernels", ".", ((*PYTEST, "tests/torch"),)),
    "lite_llama": ("harleyszhang/lite_llama", ".", (("benchmarks/kernels/bench_softmax.py",),)),
    "dion": ("microsoft/dion", ".", ((*PYTEST, "tests/test_newton_shulz.py"),)),
    "flash-model-architectures": ("open-lm-engine/flash-model-architectures", ".", (
        (*PYTEST, "tests/functional/softmax_test.py"),)),
    "gguf-triton-kernel": ("PowerfulGhost/gguf-triton-kernel", ".", ((*PYTEST, "test/test_mmq_q8_0.py"),)),
    "stickbreaking-attention": ("shawntan/stickbreaking-attention", ".", ((*PYTEST, "tests/test_attn.py"),)),
    "triton-tutorial": ("dsl-learn/triton-tutorial", ".", (
        ("ex1-vector_add/vector_add.py",), ("ex2-matrix_transpose/matrix_transpose.py",))),
    "Tri-RMSNorm": ("dtunai/Tri-RMSNorm", ".", (("usage.py",),)),
    "Triton-Kernels": ("RPegoud/Triton-Kernels", ".", (("src/add.py",),)),
    "learning-triton": ("scv119/learning-triton", ".", (("vector-add.py",), ("softmax.py",))),
    "mamba-triton": ("sustcsonglin/mamba-triton", ".", (("test_gradient.py",),)),
    "Triton-Flash-Attention": ("tejkas/Triton-Flash-Attention", ".", ((*PYTEST, "test_flash_attn.py"),)),
    "chatglm-q": ("K024/chatglm-q", ".", tuple((*PYTEST, f"tests/test_triton_ops{n}.py") for n in ("", "_int4"))),
    "GK": ("SwekeR-463/GK", ".", (("kernels/rope/ropetest.py",), ("kernels/softmax/softmaxtest.py",))),
    "nf4-triton-kernel": ("Griffith-7/nf4-triton-kernel", "src", ((*PYTEST, "tests/test_nf4_kernel.py"),)),
    "mase-triton": ("DeepWok/mase-triton", "src", tuple((*PYTEST, f"test/test_{n}.py") for n in (
        "minifloat_kernels", "mxfp_kernels", "minifloat_functional"))),
    "flash-sinkhorn": ("ot-triton-lab/flash-sinkhorn", "src", (
        (*PYTEST, "src/flash_sinkhorn/testing/test_sinkhorn_triton.py"),)),
    "rope-triton-kernel": ("ryankert01/rope-triton-kernel", ".", (("example.py",), (*PYTEST, "test_rope.py"))),
    "triton_samples": ("Wheest/triton_samples", ".", tuple(
        (f"python/{n}.py",) for n in ("transpose", "batch_transpose", "batch_softmax"))),
}  # fmt: skip
_ONE = """
import importlib, json, signal, sys, time
begun = time.perf_counter()
words = json.loads(sys.argv[1])
script = importlib.import_module("tilefold.xray.capture.script")
launches = importlib.import_module("tilefold.xray.capture.launches")
kept, made = [], launches.Captured.__init__
def keep(self, *args, **given):
    made(self, *args, **given)
    kept.append(self)
launches.Captured.__init__ = keep
over = False
def late(*_):
    global over
    over = True
    raise KeyboardInterrupt
signal.signal(signal.SIGPROF, late)
signal.setitimer(signal.ITIMER_PROF, int(sys.argv[2]))
code, said = None, ""
try:
    _, code, said = script.run_script(words[1:] if words[0] == "-m" else words, module=words[0] == "-m")
except KeyboardInterrupt:
    pass
signal.setitimer(signal.ITIMER_PROF, 0)
found = kept[0]
if over:  # pytest ends well where it is interrupted, too
    code, said = None, "stopped after its time"
print("\\nRESULT", json.dumps(dict(
    captured=len(found.launches), refused=len(found.refused), executed=sum(l.executed for l in found.launches),
    distinct=len(found.distinct()), kernels=len({l.kernel for l in found.launches}), code=code, said=said)))
"""


def main(folder: Path, only: set[str], seconds: int) -> None:
    """Run the scripts, each for at most `seconds` of the processor, and print their rows."""
    print(
        "| project | commit | script | reached | captured | executed | the script |\n|---|---|---|---:|---:|---:|---|"
    )
    for project, (repository, source, scripts) in SCRIPTS.items():
        for words in scripts if not only or project in only else ():
            print(_row(folder / project, repository, source, words, seconds), flush=True)


def _row(checkout: Path, repository: str, source: str, words: tuple[str, ...], seconds: int) -> str:
    commit = (
        (checkout / "COMMIT").read_text().strip()[:8] if (checkout / "COMMIT").is_file() else _head(checkout)
    )
    path = os.pathsep.join(
        [str((checkout / source).resolve()), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    )
    done = subprocess.run(
        [sys.executable, "-c", _ONE, json.dumps(words), str(seconds)],
        cwd=checkout, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, errors="replace", check=False,
    )  # fmt: skip
    out = checkout.parent / "out"
    out.mkdir(exist_ok=True)
    (out / f"{checkout.name}-{int(time.time())}.txt").write_text(done.stdout + done.stderr)
    line = next((x for x in done.stdout.splitlines()[::-1] if x.startswith("RESULT ")), None)
    name = " ".join(["pytest", *words[len(PYTEST) :]] if words[: len(PYTEST)] == PYTEST else words)
    if line is None:
        return f"| {repository} | `{commit}` | `{name}` | | | | no result |"
    found = json.loads(line.removeprefix("RESULT "))
    reached = found["captured"] + found["refused"]
    ended = "ends well" if found["code"] == 0 else found["said"]
    return f"| {repository} | `{commit}` | `{name}` | {reached} | {found['captured']} | {found['executed']} | {ended} |"


def _head(checkout: Path) -> str:
    done = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "--short=8", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=int, default=60)
    given = parser.parse_args()
    main(given.folder, set(given.names), given.seconds)
