"""One module per question; `python -m benchmarks.NAME` prints ratios measured in one run."""
