"""The plain model. It imports only torch; training, files and fast kernels live elsewhere. Begin with ``vit.py``.

- ``vit.py``: the Vision Transformer, equations 1 to 4; it composes the parts below.
- ``config.py``: the configuration, made of those of the parts; ``part.py``: what a part is; ``sizes.py``: named sizes.
- One file, or one folder with a file for each kind, per part: ``stems/``, ``positions/``, ``attention.py``, ``mlp.py``,
  ``block.py``, ``pools.py``, ``heads.py``. Each has configuration, module, checks, initialisation and memory.
- ``init.py``: initialisation schemes, by the role of a layer.
"""
