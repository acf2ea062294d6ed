"""Attention, one file for each kind.

To add a kind, write a subclass of :class:`~vitreous.model.attention.softmax.AttentionConfig` in a new file and import
it here. The command line, its help and model files then include it.
"""

from vitreous.model.attention.axial import AxialAttention as AxialAttention
from vitreous.model.attention.axial import AxialConfig as AxialConfig
from vitreous.model.attention.softmax import Attention as Attention
from vitreous.model.attention.softmax import AttentionConfig as AttentionConfig
from vitreous.model.attention.softmax import NoKeyBias as NoKeyBias

ATTENTIONS: tuple[type[AttentionConfig], ...] = (AttentionConfig, AxialConfig)
"""The kinds that users can choose."""
