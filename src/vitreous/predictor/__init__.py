"""Classify images with a trained model.

Read `classifier.py` first. `exported.py` is the same for a file of `vitreous export`, and `loading.py` opens either.
"""

from vitreous.predictor.classifier import Classifier
from vitreous.predictor.exported import ExportedClassifier
from vitreous.predictor.loading import load

__all__ = ["Classifier", "ExportedClassifier", "load"]
