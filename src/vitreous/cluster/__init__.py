"""The verbs on a Ray cluster, for `--on ray://...`: the same commands, outputs and errors as on one machine.

`address.py` connects; `room.py` says how many workers a command has; `signals.py` collects Ctrl-C and SIGTERM.

- `train` and `finetune`: `training.py` has Ray Train start the processes of a run, each of which `member.py` and
  `keeper.py` look after, and `board.py` tells the command of them.
- `predict`, `embed` and `evaluate`: `classifier.py` stands in for the classifier of one machine, `pool.py` has its
  workers, and `parts.py` the finished parts of the results.
- `serve`: `serving.py` is the command, `operator.py` its hand on the cluster, `replica.py` a service of which Ray Serve
  has several, and `proxy.py` what its proxies answer when no replica does.

Ray is imported here, and only when a function is called.
"""
