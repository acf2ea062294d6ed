"""Runs graphs on the CPU: their logits, their accuracy on labelled images, and their speed side by side.

Graphs are OpenVINO's, and so is the runtime here; a :class:`Runtime` may compute the same graphs by other means.

Shapes: B batch, K classes.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from vitreous.evaluate.multilabel.metrics import mean_average_precision
from vitreous.export.openvino_file import core

__all__ = [
    "OPENVINO",
    "Precision",
    "Runtime",
    "Speed",
    "Top1",
    "compare_speed",
    "in_turn",
    "is_quantised",
    "logit_error",
    "logits_of",
]

Precision = Literal["float32", "fastest"]
"""How a graph runs: in float32, or in the fastest precision of the machine."""
_CALLS = 2  # calls of each graph in a round
_ROUNDS = 10


def is_quantised(graph: Any) -> bool:
    """Return whether a graph has quantisers."""
    return any(node.get_type_name() == "FakeQuantize" for node in graph.get_ops())


def _compiled(graph: Any, precision: Precision, streams: int = 1) -> Any:
    """Compile a graph; the fastest precision for what is not int8 is bf16 where the CPU computes it."""
    hints: dict[str, Any] = {"NUM_STREAMS": streams, "PERFORMANCE_HINT": "THROUGHPUT" if streams > 1 else "LATENCY"}
    if precision == "float32":
        hints["INFERENCE_PRECISION_HINT"] = "f32"
    return core().compile_model(graph, "CPU", hints)


def logits_of(graph: Any, batches: Iterable[NDArray[Any]], precision: Precision | None = None) -> NDArray[np.float32]:
    """Return the logits (B, K) of batches of inputs; without an output of that name, the first output.

    By default a float graph runs in float32, and a quantised one as on any later use: with bf16 where the CPU has it.
    """
    compiled = _compiled(graph, precision or ("fastest" if is_quantised(graph) else "float32"))
    named = [output for output in compiled.outputs if "logits" in output.get_names()]
    output = named[0] if named else compiled.outputs[0]
    return np.concatenate([np.array(compiled([batch])[output], np.float32) for batch in batches])


def logit_error(logits: NDArray[np.float32], expected: NDArray[np.float32], *, several: bool = False) -> float:
    """Return the size of the error of logits (B, K) as a part of what varies between images; infinity if not finite.

    Both are centred for each image first: a constant added to all logits changes no probability of a softmax. It
    changes those of a sigmoid, so that logits of ``several`` labels are compared as they are. 0 is exact. Logits that
    are the same for every image, or unrelated to the expected ones, have 1 or more.
    """
    if not np.isfinite(logits).all():
        return math.inf
    if not several:
        logits, expected = (each - each.mean(1, keepdims=True) for each in (logits, expected))
    varying = expected - expected.mean(0) if len(expected) > 1 else expected
    return float(np.linalg.norm(logits - expected) / max(float(np.linalg.norm(varying)), 1e-12))


@dataclass(frozen=True)
class Speed:
    """Two graphs timed in turn on this machine."""

    batch: int
    before: float  # images per second of the float graph in its fastest precision, median
    after: float  # of the quantised graph
    ratio: float  # median over rounds of how many times faster the quantised graph is
    low: float  # smallest ratio of a round
    high: float  # largest ratio of a round
    rounds: int
    precision: str  # of the float graph, as the runtime calls it


def compare_speed(
    graph: Any, quantised: Any, images: NDArray[Any], rounds: int = _ROUNDS, rest: Precision = "fastest"
) -> Speed:
    """Time both graphs on a batch (B, ...) in turn, both with the batch shared between the cores.

    The float graph runs in its fastest precision, what is not int8 in the other in the precision `rest`.
    """
    (before, precision), (after, _) = _shared(graph, images, "fastest"), _shared(quantised, images, rest)
    return in_turn(before, after, len(images), precision, rounds)


def in_turn(
    before: Callable[[], object], after: Callable[[], object], batch: int, precision: str, rounds: int = _ROUNDS
) -> Speed:
    """Time two functions that compute a batch, round by round; the `precision` is of the first."""
    times: list[list[float]] = [[], []]
    for work in (before, after):
        work()
    for _ in range(rounds):
        for work, taken in zip((before, after), times, strict=True):
            start = time.perf_counter()
            for _ in range(_CALLS):
                work()
            taken.append((time.perf_counter() - start) / _CALLS)
    ratios = sorted(one / other for one, other in zip(*times, strict=True))
    slow, fast = (batch / statistics.median(taken) for taken in times)
    return Speed(batch, slow, fast, statistics.median(ratios), ratios[0], ratios[-1], rounds, precision)


def _shared(graph: Any, images: NDArray[Any], precision: Precision) -> tuple[Callable[[], None], str]:
    """Return a function that runs a graph on a batch in one part per core, and the precision of the graph."""
    cores = int(core().get_property("CPU", "RANGE_FOR_STREAMS")[1])
    parts = np.array_split(images, max(1, min(cores, 4, len(images) // 4)))
    compiled = _compiled(graph, precision, len(parts))
    requests = [compiled.create_infer_request() for _ in parts]

    def run() -> None:
        for request, part in zip(requests, parts, strict=True):
            request.start_async([part], share_inputs=True)
        for request in requests:
            request.wait()

    return run, str(compiled.get_property("INFERENCE_PRECISION_HINT").to_string())


class Runtime(Protocol):
    """What computes the graphs while int8 is chosen: that which will compute the file."""

    in_float: Sequence[str]  # operations that it computes in float only
    has_bf16: bool  # whether it may compute what is not int8 in bf16

    def graph_inputs(self, images: Sequence[NDArray[Any]]) -> Sequence[NDArray[Any]]:
        """Return what the graph computes from images, where it has other inputs than the file."""

    def logits_of(
        self, graph: Any, batches: Iterable[NDArray[Any]], precision: Precision | None = None
    ) -> NDArray[np.float32]:
        """Return the logits (B, K), as :func:`logits_of` does."""

    def compare_speed(self, graph: Any, quantised: Any, images: NDArray[Any], *, rest: Precision = "fastest") -> Speed:
        """Time a float graph and a quantised one, as :func:`compare_speed` does."""


class _OpenVino:
    in_float: Sequence[str] = ()
    has_bf16 = True

    def graph_inputs(self, images: Sequence[NDArray[Any]]) -> Sequence[NDArray[Any]]:
        return images

    logits_of = staticmethod(logits_of)
    compare_speed = staticmethod(compare_speed)


OPENVINO: Runtime = _OpenVino()
"""The runtime of OpenVINO's graphs."""


@dataclass(frozen=True)
class Top1:
    """The accuracy of a graph on labelled images, in [0, 1]; of several labels of an image, mAP.

    Args:
        batches: Inputs of the graph, (B, ...) each.
        labels: The class index of each image in turn, (N,), or its labels, (N, K) of 0 and 1.
        runtime: Computes the graph.
    """

    batches: list[NDArray[Any]]
    labels: NDArray[np.int64]
    runtime: Runtime = OPENVINO

    def __call__(self, graph: Any, precision: Precision) -> float:
        """Return the fraction of images whose label has the highest logit; `precision` is of what is not int8."""
        logits = self.runtime.logits_of(graph, self.batches, precision)
        if self.labels.ndim == 2:
            return mean_average_precision(logits, self.labels)
        return float((logits.argmax(1) == self.labels).mean())
