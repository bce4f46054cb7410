"""Training loops that users write themselves, with many workers."""
