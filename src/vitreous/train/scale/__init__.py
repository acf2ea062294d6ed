"""One run in several processes, on one machine or several. No run in a single process imports this package.

In the order in which a run meets them: place.py finds out which process this is, launch.py starts the processes of a
machine, run.py is the course of the run in each of them, and team.py is how they agree. choice.py chooses how they
share the model: replicated.py if each holds all of it, fsdp/ if each holds a part. shares.py computes the same step
from shares of a batch, and callbacks.py the same run. heartbeat.py and watch.py end a run whose processes are stuck or
gone.
"""
