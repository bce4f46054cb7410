"""Checkpoints of a run: their files, and when they are written and read."""
