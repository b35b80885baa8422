"""From a kernel's source to its texts, offline: arguments read, Triton called, the assembler asked for resources."""

from tilefold.xray.compile.arguments import Argument, argument
from tilefold.xray.compile.job import Compiled, Job, Machine, Resources

__all__ = ["Argument", "Compiled", "Job", "Machine", "Resources", "argument"]
