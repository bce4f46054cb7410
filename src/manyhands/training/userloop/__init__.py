"""Users' own training loops with many workers."""
