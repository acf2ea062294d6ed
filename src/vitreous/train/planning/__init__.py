"""The cost of a run before it starts: `plan.py` estimates time, memory and FLOPs, `trials.py` makes steps to measure them.

`memory.py` counts the memory that does not depend on the batch, without a step.
"""
