"""Pure functions on logits, labels and features.

`scoring/` scores logits against labels, in all and by parts, with intervals and comparisons. `trust/` says how far a
prediction can be trusted: calibration, thresholds for abstention, and sets of classes. `features/` evaluates frozen
features by probes, and finds with them label errors and what to label next. `multilabel/` does the first two for images
with several labels.

`vitreous.evaluate(model, data, **options)` is documented in `help(vitreous.api.evaluate)`.
"""
