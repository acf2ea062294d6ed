"""Pure functions on logits, labels and features.

`metrics` scores logits, `scores` adds scores per class and the order of a large confusion matrix, and `slices` scores
parts of a split. `intervals` bootstraps all of them at once, `area_intervals` those that rank, and `compare` tests two
models on the same images. `calibration` fits and measures a temperature. `selective` scores how far a prediction can
be trusted, `abstention` turns that into a threshold, and `conformal` into sets of classes; `stored` keeps their results
in a model file, and `thresholds` fits and measures both for one model. `probes` evaluates frozen features by
nearest neighbours, a linear probe (`logistic`) and few-shot regression (`fewshot`), and `confident` finds label errors
with them; `labelled` checks their input. `robustness` summarises errors on corrupted images.

`vitreous.evaluate(model, data, **options)` is documented in `help(vitreous.api.evaluate)`.
"""
