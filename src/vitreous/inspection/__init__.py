"""What a model looks at, how faithful the answer is, and measures of its inside.

Class maps:

- ``explain.py``: one image and one class, as :func:`vitreous.explain`; ``explanation.py``: what it returns.
- ``maps/``: the methods, one file each; ``maps/base.py`` says what a method is.
- ``faithfulness/``: whether class maps agree with what the model's predictions depend on.

Measures of weights, attention and tokens are functions of a model and images that return frozen dataclasses of numpy
arrays. `passes` runs a model over images in batches, `layer_features` keeps the tokens of every depth, and
`principal_components` is the one analysis that several measures share.

- `filters` and `positions`: what the patch projection and the position embedding have learned.
- `attention_distance`: how far attention reaches, and how concentrated it is.
- `norms`: outlier tokens; ``registers/``: the MLP neurons that cause them, and a register that takes them.
- `similarity` and `depth`: how representations change from block to block, and what a linear probe reads from them.
- `patch_colours`: patch features as colours.
- `neighbours`: the most similar images and patches.
"""
