"""Pure functions on logits, labels and features.

`metrics` scores logits, and `calibration` fits and measures a temperature. `probes` evaluates frozen features by
nearest neighbours, a linear probe (`logistic`) and few-shot regression (`fewshot`), and `confident` finds label errors
with them; `labelled` checks their input. `robustness` summarises errors on corrupted images.

`vitreous.evaluate(model, data, **options)` is documented in `help(vitreous.api.evaluate)`.
"""
