"""Patch stems, one file for each kind: how pixels become tokens.

A new kind is a subclass of :class:`~vitreous.model.stems.base.Stem` in a file of its own, and one import here.
"""

from vitreous.model.stems.base import PatchEmbed as PatchEmbed
from vitreous.model.stems.base import Stem as Stem
from vitreous.model.stems.conv import ConvStem as ConvStem
from vitreous.model.stems.patch import LinearStem as LinearStem
from vitreous.model.stems.patch import PatchStem as PatchStem
from vitreous.model.stems.resnet import ResNetStem as ResNetStem

STEMS: tuple[type[Stem], ...] = tuple(Stem.__subclasses__())
"""The kinds imported above."""
