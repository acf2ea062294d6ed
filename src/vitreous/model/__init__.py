"""The plain model. Of other libraries it imports torch alone; training, files and fast kernels live elsewhere.

Read ``vit.py`` first.

- ``vit.py``: the Vision Transformer, equations 1 to 4. It composes the parts below.
- ``config.py``: the configuration of a model, made of the configurations of its parts.
- ``part.py``: what all parts have in common. ``sizes.py``: the table of named sizes.
- ``stems/``, ``positions/``, ``attention/``, ``mlp.py``, ``block.py``, ``pools.py``, ``heads.py``: the parts. The file
  of a part holds its configuration, module, checks, initialisation and memory use; stems, positions and attention have
  one file per kind.
- ``init.py``: the initialisation schemes. They choose initial values by the role of a layer.
"""
