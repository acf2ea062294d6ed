"""How much time an engine process takes to open its model with the engine `auto`.

`at-once`: PyTorch, which needs no graph, so that a service answers as soon as it can. `stored`: the fastest engine for
which the model has been converted already. `convert`: the fastest engine, for which the model is converted if need be.
"""

from __future__ import annotations

from typing import Literal

__all__ = ["AT_ONCE", "CONVERT", "STORED", "Effort"]

Effort = Literal["at-once", "stored", "convert"]
"""How much work opening an engine may be."""
AT_ONCE: Effort = "at-once"
"""Only what answers at once."""
STORED: Effort = "stored"
"""A graph that is stored may be opened."""
CONVERT: Effort = "convert"
"""A graph may be converted, which takes seconds to minutes."""
