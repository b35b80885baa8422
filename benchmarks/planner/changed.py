"""Names of drawn cases whose plan other constants change, for `tilefold bench SUITE --cases FILE` to time both of each.

    PYTHONPATH=src python benchmarks/planner/changed.py shapes settings.json before --seed 5 --draw 4000 --most 20

`settings.json` is as TILEFOLD_BENCH_SETTINGS names it (`tilefold.bench.settings`). Plans are an H200's; nothing runs.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from unittest import mock

import torch
import torch._dynamo  # it looks at torch.Generator, which is replaced below

from tilefold.api.dispatch import plan_for
from tilefold.bench.cases import Case
from tilefold.bench.settings import forget_plans, set_to, settings_of
from tilefold.errors import TilefoldError
from tilefold.planner.device import Device
from tilefold.planner.plan import Plan
from tilefold.runtime.switch import ExplainedError, explaining


def plan_of(suite: str, case: Case, device: Device | None = None) -> Plan | None:
    """The plan of the suite's call of tilefold on a chip, by default an H200; None where the call is refused."""
    build = importlib.import_module(f"tilefold.bench.suites.{suite}").build_ours
    seeded = mock.Mock(**{"return_value.manual_seed.return_value": None})
    with mock.patch.object(torch, "Generator", seeded):  # nothing is drawn of tensors without data
        x = case.draw("meta")
    forget_plans()
    try:
        with explaining():
            build(case, x)[0].call(x)
    except ExplainedError as found:
        return plan_for(found.request, found.tensors, device)
    except TilefoldError:
        return None
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw, plan twice, print."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("suite", choices=("shapes", "products"))
    parser.add_argument("settings")
    parser.add_argument("name")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draw", type=int, default=1000, help="cases")
    parser.add_argument("--most", type=int, default=20, help="names printed")
    parser.add_argument("--operations", help="only these, such as cumsum,cummax")
    options = parser.parse_args(arguments)
    constants = settings_of(options.settings)[options.name]
    suite = importlib.import_module(f"tilefold.bench.suites.{options.suite}").SUITE
    wanted = options.operations.split(",") if options.operations else None
    found = 0
    for case in suite.select("full", options.seed, options.draw):
        if wanted and case.operation not in wanted:
            continue
        now = plan_of(options.suite, case)
        with set_to(constants):
            other = plan_of(options.suite, case)
        if now is not None and other is not None and now.note != other.note:
            print(f"{case.name}", flush=True)
            print(f"    {now.note} | {other.note}", file=sys.stderr, flush=True)
            found += 1
            if found == options.most:
                break
    return 0


if __name__ == "__main__":
    sys.exit(main())
