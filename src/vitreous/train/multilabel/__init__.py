"""Runs on images with several labels: a sigmoid for each label in the place of the softmax.

`config.py` has the loss, `losses.py` its formulas, `module.py` the step, `writing.py` the files, and `run.py` what
differs from any other run. No other run imports more than `config.py`.
"""
