"""Formats of other families: pure maps of tensor names and JSON documents, in both directions. No model is built here.

Start with :mod:`common`, the types that adapters exchange. :mod:`google` (with :mod:`google_resnet`, the stem of its
hybrids), :mod:`timm`, :mod:`huggingface` and :mod:`torchvision` each offer ``recognise``, ``read``, ``write``,
``fixed_constants`` and ``LAYOUT``. They share :mod:`shapes` (a configuration from tensor shapes), :mod:`pipelines`
(evaluation pipelines) and :mod:`sidecar` (the JSON file beside weights without metadata). A new family is one module
here and one line each in ``opening.FAMILIES`` and ``provenance``.
"""
