"""Where plans run: the reference definition, lanes on torch operations (CPU), and Triton (GPU)."""
