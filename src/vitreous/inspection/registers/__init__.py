"""Registers without training: a model in which an added token takes the outliers that patches had.

`neurons.py` finds the MLP neurons that cause outliers, `test_time.py` returns a copy of the model in which a register
takes them, and `effect.py` measures what that changes.
"""
