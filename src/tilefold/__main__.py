"""`python -m tilefold`."""

from tilefold.cli import main

main()
