"""Facts of a monoid that are known without running it on data: laws, symmetry, block forms, commutativity."""
