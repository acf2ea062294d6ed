"""Runs graphs in ONNX Runtime: each is written as an ONNX model first, as the file will be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.export.graph.core import PIXELS
from vitreous.export.onnx_file import Runner, open_session
from vitreous.export.quantisation.onnx_graph import computed_in_float, quantised_model, read
from vitreous.export.quantisation.running import Precision, Speed, in_turn, is_quantised

__all__ = ["OnnxRuntime"]


class OnnxRuntime:
    """A written ONNX file and its quantised versions in ONNX Runtime; a :class:`.running.Runtime`.

    Only products with a matrix of weights are quantised. ONNX Runtime computes attention and convolutions whose results
    are not quantised in float32.
    """

    has_bf16 = False

    def __init__(self, file: Path) -> None:
        import onnx

        self.model = onnx.load(file)
        self.graph = read(file)
        """The file as a graph of OpenVINO, after the resize."""
        self.in_float: Sequence[str] = computed_in_float(self.graph, self.model)
        self._file, self._float = file, open_session(file)

    def model_of(self, graph: Any) -> Any:
        """Return a quantised version of the graph as an ``onnx.ModelProto``."""
        return quantised_model(graph, self.graph, self.model)

    def graph_inputs(self, images: Sequence[NDArray[Any]]) -> Sequence[NDArray[Any]]:
        """Return the resized pixels of images, as the file computes them."""
        resize = Runner(self._file, (PIXELS,))
        return [resize(batch)[0] for batch in images]

    def logits_of(
        self, graph: Any, batches: Iterable[NDArray[Any]], precision: Precision | None = None
    ) -> NDArray[np.float32]:
        """Return the logits (B, K) of batches of inputs. What is not int8 is float32, whatever the precision."""
        session = self._session(graph)
        return np.concatenate([_run(session, batch) for batch in batches])

    def compare_speed(self, graph: Any, quantised: Any, images: NDArray[Any], *, rest: Precision = "float32") -> Speed:
        """Time both graphs on a batch (B, ...) in turn."""
        before, after = (partial(_run, self._session(each), images) for each in (graph, quantised))
        return in_turn(before, after, len(images), "float32")

    def _session(self, graph: Any) -> Any:
        return open_session(self.model_of(graph).SerializeToString()) if is_quantised(graph) else self._float


def _run(session: Any, batch: NDArray[Any]) -> NDArray[np.float32]:
    (logits,) = session.run(["logits"], {"images": batch})
    return np.asarray(logits, np.float32)
