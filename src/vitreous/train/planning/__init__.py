"""The cost of a run: `plan.py` estimates time, memory and FLOPs from the steps that `trials.py` makes before it starts.

`memory.py` counts the memory that does not depend on the batch, without a step.
"""
