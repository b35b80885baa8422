"""Observations: what is worth knowing of a kernel, found in its texts and in what its programs did."""

from tilefold.xray.observe.codes import CODES
from tilefold.xray.observe.observe import observe

__all__ = ["CODES", "observe"]
