"""Training: configuration, optimiser, the thin Lightning module, and the story of a run.

The function of the same name is `vitreous.train(data, **options)`: see `help(vitreous.api.train)`.
"""
