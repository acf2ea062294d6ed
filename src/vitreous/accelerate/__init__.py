"""A plain model made fast, with the same state dict. The model never imports this package.

- ``model.py``: :func:`~vitreous.accelerate.model.accelerate` and the fast subclasses of the model's modules.
- ``stems.py``: the patch stems in bfloat16 on a CPU.
- ``kernels.py``: linear layers, norms and attention in bfloat16 on a CPU.
- ``batch_parts.py``: a batch cut into one part for each thread.
- ``merging.py``: token merging in evaluation.
- ``cost.py``: parameters, operations and memory of a model, without building it.
"""
