"""What a model looks at, and how faithful the answer is.

- ``explain.py``: one image and one class, as :func:`vitreous.explain`; ``explanation.py``: what it returns.
- ``maps/``: the methods, one file each; ``maps/base.py`` says what a method is.
- ``faithfulness/``: whether class maps agree with what the model's predictions depend on.
"""
