"""Folds on a GPU: device functions generated from graphs, hand-written kernels over them, cached launchers."""
