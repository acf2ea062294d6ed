"""Runs on images with several labels: a sigmoid for each label in the place of the softmax.

`config.py` has the loss, `losses.py` its formulas, `writing.py` the files, `run.py` what differs from any other
run, and `shared.py` the same in several processes. No other run imports more than the first two.
"""
