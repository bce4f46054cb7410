"""What holds for a user's own all-reduce: `manyhands check mine.py:ring`.

`cases` lists what is tried, `checked_process` tries it in a group of processes on a
`strict_communicator`, `supervision` starts that group and ends a deadlock, `criteria` judges,
`printed_page` prints.
"""
