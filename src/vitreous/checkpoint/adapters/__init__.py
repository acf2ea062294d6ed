"""Other families' formats: one module each, pure maps of names and tensors, both ways. No model is built here.

Each module offers ``recognise(tensors)``, ``read(source, hints)`` and ``write(model)``. What they share is in
:mod:`vitreous.checkpoint.adapters.common` and :mod:`vitreous.checkpoint.adapters.shapes`.
"""
