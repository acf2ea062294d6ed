"""The class map as an output of the graph: the trace of its gradients reads tables of positions as the model does."""

from __future__ import annotations

import pytest
import torch
from exported_models import saved

from vitreous.checkpoint.opening import open_checkpoint
from vitreous.export.graph.core import Core, output_names
from vitreous.export.graph.mapped import Mapped, class_map


@pytest.mark.parametrize("position", ["rope-2d", "rope-mixed", "relative-bias"])
def test_positions_that_act_in_attention(tmp_path, position):
    """Their tables are looked up by the grid, whose sides are symbols in the trace."""
    model, info = open_checkpoint(saved(tmp_path, position=position, rules=False))
    pixels = torch.randint(0, 256, (3, 3, 32, 48)).float()
    core = Core(model, info).eval()
    with torch.inference_mode():
        core(pixels)  # builds the tables
    found = Mapped(core, pixels[:1], plain_norms=False)(pixels)[len(output_names(info))]
    expected = class_map(model, info, info.pipeline.normalise(pixels))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.max()))
