"""Functions that take a model and return it parallelised."""
