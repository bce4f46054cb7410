"""A comparison: its plan, its runs, its state."""
