"""A numpy interpreter of one CTA: every instruction over all its threads at once."""

from tilefold.xray.machine.bulk.tensormap import TensorMap
from tilefold.xray.machine.kernel import Kernel, load
from tilefold.xray.machine.log import Access, Outcome, Release, Touch, Transfer
from tilefold.xray.machine.memory import Allocation, Fault, Memory
from tilefold.xray.machine.programs import all_programs, chosen_programs, execute
from tilefold.xray.machine.run import run

__all__ = [
    "Access",
    "Allocation",
    "Fault",
    "Kernel",
    "Memory",
    "Outcome",
    "Release",
    "TensorMap",
    "Touch",
    "Transfer",
    "all_programs",
    "chosen_programs",
    "execute",
    "load",
    "run",
]
