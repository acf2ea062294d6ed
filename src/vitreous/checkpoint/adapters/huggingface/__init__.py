"""Hugging Face's files: `names.py` has the names of tensors of every kind of model."""

from vitreous.checkpoint.adapters.huggingface.reading import read, recognise
from vitreous.checkpoint.adapters.huggingface.writing import LAYOUT, fixed_constants, write

__all__ = ["LAYOUT", "fixed_constants", "read", "recognise", "write"]
