"""From arguments to a problem: what is refused, what is used instead, and what a call amounts to."""
