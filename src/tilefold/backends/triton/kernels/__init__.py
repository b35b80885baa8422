"""The hand-written kernels. They are plain functions until `instantiate` gives them a monoid's device functions."""
