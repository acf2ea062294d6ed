"""What frozen features are worth, and what they say of the data.

`probes` evaluates them by nearest neighbours, a linear probe (`logistic`) and few-shot regression (`fewshot`), and
`labelled` checks their input. `confident` finds label errors, and `selection` chooses what to label next.
"""
