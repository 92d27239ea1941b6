"""Data sets, features, shards, samplers and the columnar loader."""
