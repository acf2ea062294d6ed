"""Pure functions on logits, labels and features.

The function of the same name is `vitreous.evaluate(model, data, **options)`: see `help(vitreous.api.evaluate)`.
"""
