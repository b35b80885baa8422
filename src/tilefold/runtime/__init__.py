"""State around a call: the backend in force, torch's modes, classes that override, values kept for later calls."""
