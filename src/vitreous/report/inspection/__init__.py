"""What `vitreous inspect` finds, as one page, PNG files and JSON.

Read in this order:

- ``results.py``: everything that was found, and its JSON form; ``attention.py``: attention weights small enough for a
  page.
- ``charts.py``: small SVG charts.
- ``images.py`` and ``model.py``: the parts of the page; ``page.py``, ``page.css`` and ``page.js``: the page.
- ``writing.py``: the files of a folder.

Nothing here runs a model, except that ``attention.py`` reads the values of a pass.
"""
