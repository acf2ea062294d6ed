"""How far a prediction can be trusted.

`calibration` fits and measures a temperature. `selective` scores how far a prediction can be trusted, `abstention`
turns that into a threshold, and `conformal` into sets of classes; `stored` keeps their results in a model file, and
`thresholds` fits and measures both for one model.
"""
