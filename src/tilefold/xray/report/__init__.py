"""The frozen report and how it is made."""

from tilefold.xray.report.model import Observation, Report, from_json

__all__ = ["Observation", "Report", "from_json"]
