"""The training core: configuration, step, loop, metrics and records."""
