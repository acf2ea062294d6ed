"""What tests that write ONNX graphs share: torch's table of operators."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def one_operator_table() -> Iterator[None]:
    """Keep the table, of which torch makes an equal one for each graph, in a seventh of the time of a small graph."""
    with pytest.MonkeyPatch.context() as patch:
        with contextlib.suppress(ImportError, AttributeError):  # no public part of torch: others may lack it
            from torch.onnx._internal.exporter._registration import ONNXRegistry

            patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(functools.cache(ONNXRegistry.from_torchlib)))
        yield
