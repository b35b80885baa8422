"""Contractions: products of two tensors folded over K, with what happens to each result before it is stored."""
