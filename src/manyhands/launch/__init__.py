"""Starts groups of processes, supervises them and cleans up after them."""
