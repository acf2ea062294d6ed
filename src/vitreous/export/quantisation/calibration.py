"""Has NNCF quantise a graph: weights by channel, activations by ranges that calibration images give.

The activations are quantised symmetrically, which the products of all CPUs compute fastest. SmoothQuant
(arXiv 2211.10438) moves outliers of activations into weights; whether it helps depends on the model.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from numpy.typing import NDArray

from vitreous.errors import MissingExtraError, OutputError, first_line
from vitreous.export.quantisation.layers import float_layers

__all__ = ["SETTINGS", "check_installed", "quantised"]

SETTINGS = {"SmoothQuant off": None, "SmoothQuant on": 0.95}
"""The strength of SmoothQuant in each setting that is tried; 0.95 is NNCF's default."""


def check_installed() -> None:
    """Raise a MissingExtraError if a package is missing."""
    missing = [name for name in ("openvino", "nncf") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(f"int8 needs {' and '.join(missing)}: pip install 'vitreous[int8]'")


def quantised(graph: Any, images: Sequence[NDArray[Any]], alpha: float | None, floats: Sequence[str] = ()) -> Any:
    """Return a quantised copy of an OpenVINO graph; the same images give the same graph.

    Args:
        graph: A float graph with one input.
        images: Inputs of the graph, one image each, (1, ...).
        alpha: The strength of SmoothQuant in [0, 1], or None for no SmoothQuant.
        floats: Further operations that stay in float.
    """
    with _silent():
        import nncf

        nncf.set_log_level(logging.ERROR)
        preprocessing, kept = float_layers(graph)
        smooth = nncf.AdvancedSmoothQuantParameters(matmul=-1 if alpha is None else alpha, convolution=-1)
        try:
            return nncf.quantize(
                graph,
                nncf.Dataset(images),
                preset=nncf.QuantizationPreset.PERFORMANCE,
                model_type=nncf.ModelType.TRANSFORMER,
                subset_size=len(images),
                ignored_scope=nncf.IgnoredScope(names=[*preprocessing, *kept, *floats], validate=False),
                advanced_parameters=nncf.AdvancedQuantizationParameters(smooth_quant_alphas=smooth),
            )
        except Exception as error:  # NNCF raises errors of any class
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise OutputError(f"NNCF cannot quantise this graph: {reason}; export it without int8") from error


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Suppress NNCF's progress bars, its warnings and the notes of the packages that it loads."""
    logger = logging.getLogger("torch.utils.cpp_extension")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
