"""Statistics of checkpoints: files read one tensor at a time, and described."""
