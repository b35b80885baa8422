"""Build the wheel and the sdist, install each beside torch alone, and try them there: python tests/distribution.py [FOLDER].

The environment has no Triton, rich or safetensors and does not see the source tree. With FOLDER the two files are kept there.
Exit status 1 if a file of the package is missing, or if a line of the README or a command does not do what it should.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TORCH = os.environ.get("TORCH", "torch==2.13.0")
BUILD = "import sys, setuptools.build_meta as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"
# What is tried, the exit code, and what the output must hold.
TRIALS = (
    (["--version"], 0, "tilefold "),
    (["--help"], 0, "describe"),
    (["describe", "x.npy", "--json"], 0, "absmax"),
    (["plan", "16384x8192", "--monoid", "logsumexp", "--dim", "1"], 0, "triton: whole"),
    (["watch", "logsumexp", "--html", "page.html"], 0, "page.html"),
    (["bench", "folds", "--device", "cpu", "--dry-run"], 0, "tolerance"),
    (["xray", "kernels.py::copy", "--arg", "x=*fp32"], 2, "install triton"),
)


def main() -> int:
    """Build, install, try; the lines of what failed."""
    with tempfile.TemporaryDirectory(prefix="tilefold-dist-") as name:
        folder = Path(name)
        files = built(folder)
        failures = missing(files)
        python = environment(folder / "venv")
        for file in files:
            run(
                [
                    python,
                    "-m",
                    "pip",
                    "-q",
                    "install",
                    "--no-deps",
                    "--no-build-isolation",
                    "--force-reinstall",
                    str(file),
                ]
            )
            failures += [f"{file.name}: {line}" for line in tried(python, folder / f"try-{file.suffix[1:]}")]
        if len(sys.argv) > 1:
            for file in files:
                shutil.copy(file, sys.argv[1])
    print("\n".join(failures) or "The wheel and the sdist do what the README says.")
    return 1 if failures else 0


def run(command: list[str], **options: object) -> str:
    """A command's output; its error ends this script."""
    done = subprocess.run(command, capture_output=True, text=True, **options)  # type: ignore[call-overload]  # as given
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return str(done.stdout)


def built(folder: Path) -> list[Path]:
    """The wheel and the sdist of the files that git knows."""
    tree = folder / "tree"
    for line in run(["git", "-C", str(ROOT), "ls-files", "-z"]).split("\0"):
        if line and (ROOT / line).is_file():
            (tree / line).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / line, tree / line)
    out = folder / "files"
    out.mkdir()
    kinds = ("build_wheel", "build_sdist")
    return [out / run([sys.executable, "-c", BUILD, kind, str(out)], cwd=tree).split()[-1] for kind in kinds]


def missing(files: list[Path]) -> list[str]:
    """Files below src/tilefold that git knows and a distribution lacks."""
    listed = run(["git", "-C", str(ROOT), "ls-files", "src/tilefold"]).split()
    wanted = {name.removeprefix("src/") for name in listed if (ROOT / name).is_file()}
    with zipfile.ZipFile(files[0]) as wheel, tarfile.open(files[1]) as sdist:
        found = ({*wheel.namelist()}, {name.partition("/src/")[2] for name in sdist.getnames()})
    return [
        f"{file.name} lacks {n}" for file, has in zip(files, found, strict=True) for n in sorted(wanted - has)
    ]


def environment(folder: Path) -> str:
    """The python of a fresh environment with torch, and setuptools to build the sdist."""
    run([sys.executable, "-m", "venv", str(folder)])
    python = str(folder / "bin" / "python")
    run(
        [
            python,
            "-m",
            "pip",
            "-q",
            "--disable-pip-version-check",
            "install",
            "-c",
            str(ROOT / "constraints.txt"),
            TORCH,
            "setuptools",
            "numpy",
        ]
    )
    return python


def tried(python: str, folder: Path) -> list[str]:
    """What fails of the README's lines and of the commands, in a folder of their own."""
    folder.mkdir()
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TILEFOLD"))}
    (folder / "kernels.py").write_text("import triton\n\n\n@triton.jit\ndef copy(x):\n    pass\n")
    run([python, "-c", "import numpy; numpy.save('x.npy', numpy.arange(6.0))"], cwd=folder, env=clean)
    lines = "\n".join(
        re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    )
    (folder / "readme.py").write_text(lines)
    failures = []
    commands = [([python, "readme.py"], 0, "")]
    commands += [
        ([str(Path(python).with_name("tilefold")), *arguments], code, has) for arguments, code, has in TRIALS
    ]
    for command, code, has in commands:
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=clean)
        said = done.stdout + done.stderr
        if done.returncode != code or has not in said or "Traceback" in said:
            failures.append(
                f"{' '.join(command[1:])}: exit status {done.returncode}, not {code} with {has!r}:\n{said[-800:]}"
            )
    return failures


if __name__ == "__main__":
    sys.exit(main())
