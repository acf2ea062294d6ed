"""What a model looks at: class maps over an image's patches.

- ``explain.py``: one image and one class, as :func:`vitreous.explain`; ``explanation.py``: what it returns.
- ``maps/``: the methods, one file each; ``maps/base.py`` says what a method is.
"""
