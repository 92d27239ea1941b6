"""Plain modules that know nothing of parallelism."""
