"""What is in force around a call: the backend, torch's modes, classes that override, and what is kept for later calls."""
