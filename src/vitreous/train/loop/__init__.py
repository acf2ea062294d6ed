"""The training loop of any run: what happens in a step, and what watches the steps.

`module.py` is the Lightning module with the training step, `optim.py` its optimisers and schedule, and `progress.py`
the clock. `callbacks.py` stops training, logs it and selects weights; `trainer.py` builds the Trainer, which
`silence.py` keeps quiet. `out_of_memory.py` recognises errors that more micro-batches solve.
"""
