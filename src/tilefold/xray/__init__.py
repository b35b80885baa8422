"""What the compiler made of a Triton kernel, found on a machine with no GPU."""
