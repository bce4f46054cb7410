"""One run: configured, started, followed to its end, and its result."""
