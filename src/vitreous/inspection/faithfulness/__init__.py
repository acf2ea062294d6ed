"""Whether a class map ranks the parts of an image as the prediction depends on them.

All measures remove parts of an image and predict again. Read in this order:

- ``removal.py``: cells ranked by a map, cut into groups, and the scores of images without some of the groups.
- ``saco.py``: one coefficient per map (arXiv 2404.01415). ``curves.py``: deletion and insertion (arXiv 1806.07421).
- ``table.py``: methods side by side with random maps, a verdict for each, and what a budget of time pays for.
- ``randomisation.py``: whether maps change if the model's last blocks are drawn again (arXiv 1810.03292).

The functions know neither models nor map methods: they take a function that predicts, images and maps.
"""
