"""Quantises an exported file in place: what the step of an export between writing and verification does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from vitreous.errors import OutputError, UsageError
from vitreous.export.openvino_file import REST, read_unmapped
from vitreous.export.quantisation.quantise import MAX_DROP, Quantised, quantise
from vitreous.export.quantisation.running import OPENVINO, Runtime, Top1
from vitreous.machine.openvino_package import import_openvino

__all__ = ["INT8_FORMS", "Int8"]

INT8_FORMS = ("openvino", "onnx")
"""The formats that can hold int8 graphs."""


@dataclass
class Int8:
    """Changes a written file to int8; `result` says afterwards what became of it.

    The arguments are those of :func:`.quantise.quantise`; the runtime of the file computes the accuracy. The file's
    metadata stays.
    """

    calibration: Iterable[NDArray[Any]]
    accuracy: Top1
    max_drop: float = MAX_DROP
    tell: Callable[[str], None] = field(default_factory=lambda: lambda line: None)
    weights: Mapping[str, NDArray[Any]] | None = None
    result: Quantised | None = field(default=None, init=False)
    precision: str = field(default="int8", init=False)

    def __call__(self, form: str, files: list[Path]) -> list[Path]:
        """Quantise the files of a format in place, graph first; return them.

        Raises:
            UsageError: The format has no int8.
            OutputError: The model is too large, or no quantised graph keeps the accuracy.
        """
        if form not in INT8_FORMS:
            raise UsageError(f"int8 is not possible with --to {form}: use --to {' or '.join(INT8_FORMS)}")
        change = self._change_onnx if form == "onnx" else self._change_openvino
        change(files)
        return files

    def _change_openvino(self, files: list[Path]) -> None:
        openvino = import_openvino()

        self.result = self._quantised(read_unmapped(files[0]), OPENVINO)
        self.result.graph.set_rt_info(self.result.rest, list(REST))
        openvino.save_model(self.result.graph, files[0], compress_to_fp16=False)

    def _change_onnx(self, files: list[Path]) -> None:
        import onnx

        from vitreous.export.quantisation.onnx_running import OnnxRuntime

        if len(files) > 1:
            raise OutputError(
                "int8 needs an ONNX model in one file, and this one is above 1.9 GB: use --to openvino, or export it "
                "without int8"
            )
        runtime = OnnxRuntime(files[0])
        self.result = self._quantised(runtime.graph, runtime)
        onnx.save_model(runtime.model_of(self.result.graph), files[0])

    def _quantised(self, graph: Any, runtime: Runtime) -> Quantised:
        accuracy = replace(self.accuracy, runtime=runtime)
        return quantise(
            graph,
            self.calibration,
            accuracy,
            self.max_drop,
            self.tell,
            weights=self.weights,
            runtime=runtime,
            several=accuracy.labels.ndim == 2,
        )
