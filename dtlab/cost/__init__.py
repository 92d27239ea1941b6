"""What a run needs and costs, without importing torch."""
