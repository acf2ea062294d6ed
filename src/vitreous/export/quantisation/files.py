"""Quantises an exported OpenVINO file in place: what the step of an export between writing and verification does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from vitreous.errors import UsageError
from vitreous.export.openvino_file import REST
from vitreous.export.quantisation.quantise import MAX_DROP, Accuracy, Quantised, quantise

__all__ = ["Int8"]


@dataclass
class Int8:
    """Changes a written file to int8; `result` says afterwards what became of it.

    The arguments are those of :func:`.quantise.quantise`. The file's metadata stays.
    """

    calibration: Iterable[NDArray[Any]]
    accuracy: Accuracy
    max_drop: float = MAX_DROP
    tell: Callable[[str], None] = field(default_factory=lambda: lambda line: None)
    weights: Mapping[str, NDArray[Any]] | None = None
    result: Quantised | None = field(default=None, init=False)
    precision: str = field(default="int8", init=False)

    def __call__(self, form: str, files: list[Path]) -> list[Path]:
        """Quantise the files of a format in place, graph first; return them.

        Raises:
            UsageError: The format is not OpenVINO's.
        """
        if form != "openvino":
            raise UsageError(f"int8 is not possible with --to {form}: use --to openvino")
        import openvino

        reader = openvino.Core()  # computes nothing, so that it may end before the process
        reader.set_property({"ENABLE_MMAP": False})  # the weights' file is written again while they are in use
        graph = reader.read_model(files[0])
        self.result = quantise(graph, self.calibration, self.accuracy, self.max_drop, self.tell, weights=self.weights)
        self.result.graph.set_rt_info(self.result.rest, list(REST))
        openvino.save_model(self.result.graph, files[0], compress_to_fp16=False)
        return files
