"""Work of the longer verbs between their options and their output.

`scoring` and `evaluation` belong to evaluate, `calibrating` to calibrate and evaluate, `probing` to probe, and
`suspects` to audit.
"""
