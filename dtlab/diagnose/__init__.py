"""Checks that answer with a value, a verdict and the fix."""
