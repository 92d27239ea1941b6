"""Ranks from a cell or a script: launching them, joining them, and knowing what each was doing."""
