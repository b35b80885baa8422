"""What a fold is: traced scalar functions, monoids and their laws. Pure Python on torch dtypes; no CUDA, no Triton."""
