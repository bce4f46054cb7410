"""Configures one run, starts it, supervises it, and returns its result."""
