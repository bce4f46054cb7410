"""What holds for a user's own code: an all-reduce, a strategy, or a student's file.

`manyhands check mine.py:ring`, `manyhands check mine.py:EASGD`, `manyhands check --course FOLDER`.
"""
