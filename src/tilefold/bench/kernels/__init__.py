"""Triton kernels that are measured but are no part of the library."""
