"""timm's files: `entries.py` has what its entry points set, `forms.py` how its classes name and join tensors."""

from vitreous.checkpoint.adapters.timm.reading import read, recognise
from vitreous.checkpoint.adapters.timm.writing import LAYOUT, fixed_constants, write

__all__ = ["LAYOUT", "fixed_constants", "read", "recognise", "write"]
