"""Explorers for the notebooks; each calls a pure function of dtlab.figures."""
