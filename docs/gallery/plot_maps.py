"""
What a model looks at, by eight methods
=======================================

:func:`vitreous.explain` takes a model and an image, and returns a map of patches for a class. The last column is a
random map: a method that looks like it explains nothing. `vitreous inspect MODEL --data DATA` measures how faithful
each method is.
"""

import tempfile

import matplotlib.pyplot as plt
from PIL import Image
from sklearn.datasets import load_digits

import vitreous
from vitreous.inspection.maps import MAPS

with tempfile.TemporaryDirectory() as folder:
    model = vitreous.train("digits", epochs=10, out=f"{folder}/run", quiet=True).model

shown = (0, 3, 4, 7)
figure, axes = plt.subplots(len(shown), 1 + len(MAPS), figsize=(11, 5))
for row, n in zip(axes, shown, strict=True):
    image = Image.fromarray((load_digits().images[n] * 255 / 16).astype("uint8"))
    row[0].imshow(image, cmap="gray")
    for axis, method in zip(row[1:], MAPS, strict=True):
        axis.imshow(vitreous.explain(model, image, method=method.kind).patches)
names = ["image", *(method.kind.replace("-", "\n") for method in MAPS)]
for axis, name in zip(axes[0], names, strict=True):
    axis.set_title(name, fontsize=9)
for axis in axes.flat:
    axis.set_axis_off()
figure.tight_layout()
