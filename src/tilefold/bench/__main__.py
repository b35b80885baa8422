"""`python -m tilefold.bench`: the same as `tilefold bench`."""

import sys

from tilefold.cli import run
from tilefold.cli.output import run_command

if __name__ == "__main__":
    run_command(lambda: run(["bench", *sys.argv[1:]]))
