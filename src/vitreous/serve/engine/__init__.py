"""An engine process and its parent's side: batches, computing, the queue before it, restarts and reloads.

`served_model.py` has a model's queue and its engine process; `admission.py` says when it takes no more, and
`model_stamp.py` when the model was written anew.
`engine_process.py` is the parent's side, `wire.py` the frames between both, `worker.py` the process itself, in which
`batcher.py` forms batches and `computing.py` computes them.
"""
