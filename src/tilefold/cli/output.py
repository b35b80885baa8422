"""What every command owes the reader of its output: a pipe that ends, a disk that fills, letters that an encoding lacks."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from tilefold.errors import printable as printable


def run_command(command: Callable[[], object]) -> None:
    """Run a command as a process of its own: its return value is the exit code, as `sys.exit` takes it.

    Who reads no further, like `head`, ends the process by SIGPIPE, as with other Unix tools; a traceback or an exit code
    of 1 would say something else. Output that cannot be written is one line on stderr and exit code 2.
    """
    if sys.stdout is None:  # closed by the caller; Python then prints nothing, and says nothing
        if sys.stderr is not None:
            complain("tilefold: the output must be open, got a closed one; write to a file or to /dev/null")
        sys.exit(2)
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    # A name in a file may hold characters that the terminal's encoding lacks: shown escaped, never a crash.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            code = command()
        finally:
            sys.stdout.flush()
    except OSError as error:  # a full disk, say
        said = f"tilefold: the output must be writable, got {error.strerror or error}; make room or write elsewhere"
        sys.stderr.write(printable(said) + "\n")
        # Python's own last flush would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(2)
    sys.exit(code)  # type: ignore[arg-type]  # None or a number


def complain(line: str) -> None:
    """One line on stderr, whatever its length and whatever a file put into it."""
    print(printable(line), file=sys.stderr, flush=True)
