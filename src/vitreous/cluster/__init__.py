"""The verbs on a Ray cluster, for `--on ray://...`: the same commands, outputs and errors as on one machine.

`address.py` connects. `training.py` has Ray Train start the processes of a run, each of which `member.py` and
`keeper.py` look after, and `board.py` tells the command of them. For `predict`, `embed` and `evaluate`, `classifier.py`
stands in for the classifier of one machine, `pool.py` has its workers, and `parts.py` the finished parts of the
results. Ray is imported here, and only when a function is called.
"""
