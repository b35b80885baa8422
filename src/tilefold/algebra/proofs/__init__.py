"""What is known of a monoid without running it on data: laws, symmetry, block forms, commutativity."""
