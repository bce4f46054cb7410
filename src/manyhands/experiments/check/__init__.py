"""What holds for a user's own all-reduce: `manyhands check mine.py:ring`.

`cases` lists what is tried, `group` tries it in a group of processes on a `traced` communicator,
`supervision` starts that group and ends a deadlock, `findings` judges, `page` prints.
"""
