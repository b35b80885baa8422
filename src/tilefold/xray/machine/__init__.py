"""A numpy interpreter of one CTA: every instruction over all its threads at once."""

from tilefold.xray.machine.cta import Outcome, run
from tilefold.xray.machine.kernel import Kernel, load
from tilefold.xray.machine.log import Access
from tilefold.xray.machine.memory import Allocation, Fault, Memory

__all__ = ["Access", "Allocation", "Fault", "Kernel", "Memory", "Outcome", "load", "run"]
