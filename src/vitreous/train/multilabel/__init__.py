"""Runs on images with several labels: a sigmoid for each label in the place of the softmax.

`config.py` has the options of the loss and `losses.py` its formulas; other runs import these two as well. `setup.py`
fits the configuration of a run to such data, `run.py` says what differs from other runs, `writing.py` writes the files,
and `shared.py` is for a run in several processes.
"""
