"""Formats of other families: pure maps of tensor names and JSON documents, in both directions. No model is built here.

Start with :mod:`common`, the types that adapters exchange. :mod:`google` (with :mod:`google_resnet`, the stem of its
hybrids), :mod:`facebookresearch`, :mod:`timm`, :mod:`huggingface` and :mod:`torchvision` each offer ``recognise``,
``read``, ``write``, ``fixed_constants`` and ``LAYOUT``; :mod:`releases` knows facebookresearch's files by name. They
share :mod:`shapes` (a configuration from tensor shapes), :mod:`stacking` (matrices that are joined and cut),
:mod:`pipelines` (evaluation pipelines) and :mod:`sidecar` (the JSON file beside weights without metadata).
:mod:`others` refuses what is no plain ViT. A new family is one module or room here and one line each in
``opening.FAMILIES`` and ``provenance``.
"""
