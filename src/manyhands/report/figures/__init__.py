"""What is drawn: one file per figure, with the comment beside it."""
