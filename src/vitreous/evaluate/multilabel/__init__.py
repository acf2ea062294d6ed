"""Images with several labels, or none: one sigmoid for each label in place of one softmax over classes.

Read `rule.py` first: how outputs become probabilities and labels. `fitting.py` fits that on labelled images, and
`metrics.py` scores the result. N images, K labels; labels are (N, K) of 0 and 1.
"""
