"""Plans run on torch's operations: loops over tiles, torch's own functions, and folds done again."""
