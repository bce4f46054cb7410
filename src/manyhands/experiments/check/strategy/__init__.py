"""What holds for a user's own strategy: `manyhands check mine.py:EASGD`.

`trial_runs` lists the runs, `checked_process` trains them in one group of processes with an
`observer` on each and a `collective_call_log`, `supervision` starts that group and kills a worker,
`criteria` judges, `printed_page` prints.
"""
