"""What holds for a user's own strategy: `manyhands check mine.py:EASGD`.

`trials` lists the runs, `process` trains them in one group of processes with a `probe` on each and
a log of its `calls`, `supervision` starts that group and kills a worker, `findings` judges, `page`
prints.
"""
