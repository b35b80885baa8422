"""What the compiler made of a Triton kernel, found on a machine with no GPU."""

from typing import TYPE_CHECKING, Any

from tilefold.errors import unknown_name
from tilefold.xray.check import check
from tilefold.xray.explain import explain, explain_file, explain_fold
from tilefold.xray.report.model import Report

__all__ = ["Report", "check", "explain", "explain_file", "explain_fold"]


if not TYPE_CHECKING:  # a checker knows what is here

    def __getattr__(name: str) -> Any:
        raise unknown_name(__name__, name, __all__)
