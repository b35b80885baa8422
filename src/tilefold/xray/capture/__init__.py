"""A script's Triton launches, captured and executed on a machine with no GPU."""

from tilefold.errors import hint_at_names
from tilefold.xray.capture.launches import Captured, Launch
from tilefold.xray.capture.session import capture

__all__ = ["Captured", "Launch", "capture"]
hint_at_names(__name__, __all__)
