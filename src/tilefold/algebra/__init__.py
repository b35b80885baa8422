"""The definition of a fold: traced scalar functions, monoids and their laws. Python on torch dtypes; no CUDA, no Triton."""
