"""Search over runs: Bayesian search with Hyperband on ranks, a grid to compare with, a budget in dollars."""
