"""From arguments to a problem: checks, replacements to name in errors, and canonical dims."""
