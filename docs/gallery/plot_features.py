"""
What a model has learned: features of images it has not seen
============================================================

``embed`` returns the features before the head, one row per image. Their first two principal components already part
most of the digits, which the model was trained to tell apart.
"""

import tempfile

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

import vitreous

with tempfile.TemporaryDirectory() as folder:
    model = vitreous.train("digits", epochs=10, out=f"{folder}/run", quiet=True).model

digits = load_digits()
images = [Image.fromarray((each * 255 / 16).astype("uint8")) for each in digits.images[-400:]]
features = model.embed(images)
assert features.shape == (400, model.features)

centred = features - features.mean(0)
_, _, directions = np.linalg.svd(centred, full_matrices=False)
points = centred @ directions[:2].T

figure, axes = plt.subplots(figsize=(6, 5))
for digit in range(10):
    chosen = digits.target[-400:] == digit
    axes.scatter(*points[chosen].T, s=12, color=f"C{digit}", label=str(digit))
axes.set(title="Features of 400 digits", xlabel="first component", ylabel="second component")
axes.legend(ncols=2, fontsize=8)
figure.tight_layout()
