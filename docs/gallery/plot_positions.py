"""
How alike positions are
=======================

Cosine similarity of the embedding of one patch with those of all others, as in figures 7 and 10 of the paper. Sines
and cosines know the plane from the start; learned embeddings start as noise, and ten epochs on digits give them rows
and columns.
"""

import tempfile

import matplotlib.pyplot as plt

import vitreous
from vitreous.inspection.positions import position_similarity
from vitreous.model.config import ViTConfig
from vitreous.model.vit import VisionTransformer

small = {"image_size": 16, "patch_size": 2, "in_channels": 1, "num_classes": 10, "width": 64, "depth": 1, "heads": 2}
options = {"model": {"position": "learned", "patch_size": 2}, "epochs": 10, "quiet": True}
with tempfile.TemporaryDirectory() as folder:
    trained = vitreous.train("digits", out=f"{folder}/run", **options).model
models = {
    "sines and cosines": VisionTransformer(ViTConfig(**small, position="sincos-2d")),
    "learned, at the start": VisionTransformer(ViTConfig(**small, position="learned")),
    "learned, 10 epochs": trained.model,
}

figure, axes = plt.subplots(1, len(models), figsize=(9, 3.2))
for axis, (name, model) in zip(axes, models.items(), strict=True):
    axis.imshow(position_similarity(model).similarity[2, 3], vmin=-1, vmax=1, cmap="RdBu")
    axis.plot(3, 2, "k+")
    axis.set(title=f"Similarity: {name}", xticks=[], yticks=[])
    axis.title.set_fontsize(10)
figure.tight_layout()
