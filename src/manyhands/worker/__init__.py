"""One worker of a run: its batches, its steps, its clock."""
