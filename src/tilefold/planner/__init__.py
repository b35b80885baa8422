"""How an operation is run: pure functions from a problem, a program and a device to a frozen plan."""
