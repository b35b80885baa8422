"""`python -m tilefold.bench`: the same as `tilefold bench`, where neither rich nor typer is installed."""

import sys

from tilefold.bench.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
