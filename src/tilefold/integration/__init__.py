"""How torch sees tilefold: Inductor's choices."""
