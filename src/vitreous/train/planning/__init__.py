"""The cost of a run, measured before it starts: `plan.py` estimates time, memory and FLOPs, `trials.py` makes steps."""
