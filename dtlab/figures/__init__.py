"""Pure functions that return a matplotlib Figure."""
