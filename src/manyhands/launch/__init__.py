"""Starts groups of processes, watches over them and clears up after them."""
