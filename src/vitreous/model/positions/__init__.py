"""Position embeddings, one file for each kind.

To add a kind, write a subclass of :class:`~vitreous.model.positions.base.Position` in a new file and import it here.
The command line, its help, model files and the tests of every position then include it.
"""

from vitreous.model.part import kinds_of
from vitreous.model.positions.base import Position as Position
from vitreous.model.positions.learned import Learned as Learned
from vitreous.model.positions.learned_2d import Learned2d as Learned2d
from vitreous.model.positions.none import NoPosition as NoPosition
from vitreous.model.positions.relative import Relative as Relative
from vitreous.model.positions.relative_bias import RelativeBias as RelativeBias
from vitreous.model.positions.relative_mlp import RelativeMlp as RelativeMlp
from vitreous.model.positions.rope_2d import Rope2d as Rope2d
from vitreous.model.positions.rope_mixed import RopeMixed as RopeMixed
from vitreous.model.positions.sincos_2d import SinCos2d as SinCos2d

POSITIONS: tuple[type[Position], ...] = kinds_of(Position)
"""The kinds that users can choose: those imported above."""
