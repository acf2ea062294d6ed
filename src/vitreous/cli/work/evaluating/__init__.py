"""The work of `vitreous evaluate` and `vitreous calibrate`.

`scoring.py` opens the data, computes logits and prints tables, also for probe and audit. `evaluation.py` is for one
class of each image and `labels_evaluation.py` for several labels, as are `calibrating.py` and `labels_calibrating.py`.
`gains.py` compares with and without token merging or augmentation. `evaluation_report.py` and `robustness.py` prepare
the page.
"""
