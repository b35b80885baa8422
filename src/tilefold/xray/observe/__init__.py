"""Observations on a kernel, found in its texts and in the log of its programs."""

from tilefold.xray.observe.codes import CODES
from tilefold.xray.observe.observe import observe

__all__ = ["CODES", "observe"]
