"""Scores of a classifier from its logits.

`metrics` scores logits, `scores` adds scores per class and the order of a large confusion matrix, and `slices` scores
parts of a split. `intervals` bootstraps all of them at once, `area_intervals` those that rank, and `compare` tests two
models on the same images. `any_labels` takes images with one class or with several labels. `robustness` summarises
errors on corrupted images.
"""
