"""What a fold is: traced scalar functions, monoids and their laws. Pure Python over torch dtypes; no CUDA, no Triton."""
