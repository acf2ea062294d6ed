"""Conversion between families, verified by reading the result back.

Read :mod:`convert` first: it uses :mod:`destination` (checks and atomic replacement), :mod:`writing` (the family's
files) and :mod:`witness` (the family's own library as a reference).
"""
