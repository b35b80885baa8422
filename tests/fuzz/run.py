"""Random cases for as long as asked: PYTHONPATH=src:tests python tests/fuzz/run.py --seconds 600.

Every batch has a seed of its own, which is printed; a case that fails is shrunk and shown, with the command that tries its
batch again.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
import traceback
import warnings

import torch
from hypothesis import HealthCheck, given, seed, settings

from fuzz.kinds import CPU, CUDA, Kind


def main() -> int:
    """Exit status 1 if a case failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="how long; a batch that has begun is finished"
    )
    parser.add_argument("--seed", type=int, help="of the first batch; each further one has the next")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--kinds", help="names of kinds, or parts of them, with commas between")
    parser.add_argument("--batches", type=int, help="stop after so many")
    arguments = parser.parse_args()
    kinds = [*(CUDA if arguments.device == "cuda" else CPU).values()]
    if arguments.kinds:
        kinds = [k for k in kinds if any(part in k.name for part in arguments.kinds.split(","))]
    first = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    return _fuzz(kinds, arguments.seconds, first, arguments.device, arguments.batches)


def _fuzz(kinds: list[Kind], seconds: float, first: int, device: str, batches: int | None) -> int:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    # numpy, under Triton's interpreter, warns of lanes that a kernel masks
    warnings.simplefilter("ignore")
    began, number = time.monotonic(), 0
    while time.monotonic() - began < seconds and number != batches:
        kind, chosen = kinds[number % len(kinds)], first + number
        at = time.monotonic()
        if not _tried(kind, chosen):
            print(f"\nfailed: {kind}. Again, by itself:")
            again = f"--device {device} --kinds '{kind}' --seed {chosen} --batches 1"
            print(f"  PYTHONPATH=src:tests python tests/fuzz/run.py {again}")
            return 1
        print(f"seed {chosen}: {kind.batch} {kind}, {time.monotonic() - at:.1f} s", flush=True)
        number += 1
    print(f"{number} batches without a disagreement")
    return 0


def _tried(kind: Kind, chosen: int) -> bool:
    """One batch; a failure is shrunk and printed."""

    @seed(chosen)
    @settings(
        max_examples=kind.batch, deadline=None, database=None, report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(kind.cases)
    def batch(case: object) -> None:
        kind.check(case)

    try:
        batch()
    except Exception:
        traceback.print_exc(file=sys.stdout)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
