"""Work of the longer verbs between their options and their output.

`scoring` and `evaluation` belong to evaluate, `calibrating` to calibrate and evaluate, `probing` to probe,
`suspects` to audit, and `pretrained_models` to models.
"""
