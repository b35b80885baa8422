"""`tilefold bench`: every claim of speed as one command, beside what one would otherwise use, after the answers agreed."""
