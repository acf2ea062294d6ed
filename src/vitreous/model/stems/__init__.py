"""Patch stems, one file for each kind: how pixels become tokens.

To add a kind, write a subclass of :class:`~vitreous.model.stems.base.Stem` in a new file and import it here.
"""

from vitreous.model.part import kinds_of
from vitreous.model.stems.base import PatchEmbed as PatchEmbed
from vitreous.model.stems.base import Stem as Stem
from vitreous.model.stems.conv import ConvStem as ConvStem
from vitreous.model.stems.patch import LinearStem as LinearStem
from vitreous.model.stems.patch import PatchStem as PatchStem
from vitreous.model.stems.resnet import ResNetStem as ResNetStem

STEMS: tuple[type[Stem], ...] = kinds_of(Stem)
"""The kinds that users can choose: those imported above."""
