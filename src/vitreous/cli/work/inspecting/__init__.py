"""The work of `vitreous inspect`: `inspection.py` is its course, and each other file is one part of the page."""
