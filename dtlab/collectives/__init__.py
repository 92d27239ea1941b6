"""Collectives by hand over send and receive, and a counter of what crosses between ranks."""
