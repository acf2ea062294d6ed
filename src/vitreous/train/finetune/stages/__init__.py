"""Fine-tuning in stages: cheap methods first, and the best of them on the validation split is the result.

`story.py` is the outline. `decisions.py` says how many views and which stages a run can afford, as pure functions.
`views.py` has the pixels of a view of an image, `features.py` computes features of all of them with the fastest engine,
and `cache.py` keeps them on disk. `heads.py` fits heads to them, `attentive.py` the one that attends to patch tokens.
`below_head.py` decides which weights below the head are trained next, and `training.py` trains them from the best head
and averages them with their start. `outcome.py` is what a stage leaves, `staging.py` keeps it for a resume,
`writers.py` writes the best model so far, and `ending.py` tests and reports the result.
"""
