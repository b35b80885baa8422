"""`python -m tilefold.bench`: the same as `tilefold bench`, where neither rich nor typer is installed."""

import sys

from tilefold.bench.command import main
from tilefold.output import run_command

if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
