"""What the compiler made of a Triton kernel, found on a machine with no GPU."""

from tilefold.errors import hint_at_names
from tilefold.xray.check import check
from tilefold.xray.explain import explain, explain_file, explain_fold
from tilefold.xray.report.model import Report

__all__ = ["Report", "check", "explain", "explain_file", "explain_fold"]
hint_at_names(__name__, __all__)
