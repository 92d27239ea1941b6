"""Checks, hints, progress, and building the notebooks from their sources."""
