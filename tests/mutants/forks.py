"""Runs of pytest in forks of one process that has torch and Triton already: each importing them would take longer than most
tests. The library and the tests are imported in each fork, from the working folder.

A line in: [arguments of pytest, seconds, a file for what it prints]. A line out: its exit status, null if it took too long.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time

import pytest
import triton.language  # noqa: F401


def main() -> None:
    assert not any(name.startswith("tilefold") for name in sys.modules)
    for line in sys.stdin:
        arguments, seconds, file = json.loads(line)
        child = os.fork()
        if not child:
            _run(arguments, seconds, file)
        print(json.dumps(_status(child, 4 * seconds)), flush=True)


def _run(arguments: list[str], seconds: int, file: str) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    output = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    status = 3  # pytest's own of what went wrong within
    try:
        status = int(pytest.main(arguments))
    finally:
        sys.stdout.flush()
        os._exit(status)


def _status(child: int, seconds: float) -> int | None:
    """A child's exit status; None where its processor's time or the clock's ran out."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return None if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


if __name__ == "__main__":
    main()
