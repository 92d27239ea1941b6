"""The checks and hints of each lesson, one module `lNN.py` a lesson, loaded when a check or hint asks."""
