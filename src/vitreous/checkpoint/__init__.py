"""Model files: this package's own format and those of other libraries.

Read :mod:`model_file` (the self-describing .safetensors) first, then :mod:`opening` (any checkpoint to a model), which
uses :mod:`locating` (file, folder or hub id), :mod:`hub` (downloads), :mod:`adapters` (one module per family),
:mod:`resize` (another image or patch size), :mod:`memory_check` and :mod:`provenance` (what a file records of its
origin). :mod:`conversion` writes other families' files and verifies them. :mod:`untrusted` reads the bytes of all files
without executing or believing them.
"""
