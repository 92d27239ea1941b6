"""The commands behind ``dtlab``: each parses nothing and computes nothing, it calls and prints."""
