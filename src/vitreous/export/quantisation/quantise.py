"""Quantises a graph to int8 and returns it only if it has kept its accuracy.

The order of events: NNCF quantises the graph with SmoothQuant off and on, each with the products of attention in int8
if that changes the logits little more. A setting whose logits have nothing in common with the float graph's is
discarded. Of the others, the one within the accepted loss of accuracy that changes the logits least is kept. If none is
within it, layers of the best go back to float one after another, those first whose quantisation changes the logits
most, until the loss is small enough.

What is not int8 runs in bf16 on a CPU that has it, unless that alone costs more than the accepted loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import DataError, OutputError, UsageError
from vitreous.export.quantisation.calibration import SETTINGS, check_installed, quantised
from vitreous.export.quantisation.folding import fold
from vitreous.export.quantisation.layers import Unit, float_layers, layer_names, quantised_units, restore
from vitreous.export.quantisation.running import OPENVINO, Precision, Runtime, Speed, logit_error

__all__ = ["MAX_DROP", "Accuracy", "Quantised", "Restored", "Tried", "quantise"]

MAX_DROP = 0.2
"""Default of the accepted loss of accuracy, in points: 0.2 is a drop from 95.0 % to 94.8 %."""
_COLLAPSED = 0.7  # error of the logits; sound graphs have 0.02 to 0.3
_MORE = 1.25  # attention stays in int8 if the error of the logits is at most so many times that with it in float
_ROUNDING = 1e-3  # error of the logits that rounding may cause when factors are folded
_COMPARED_IMAGES = 64  # at most; the logits are compared on these
_RANKING_STEP = 2  # every second of them decides the order in which layers go back to float
_TIMED_BATCH = 16


class Accuracy(Protocol):
    """Measures graphs on labelled images."""

    def __call__(self, graph: Any, precision: Precision, /) -> float:
        """Return the accuracy of a graph in [0, 1], with what is not int8 in this precision."""


@dataclass(frozen=True)
class Tried:
    """One setting that was tried."""

    setting: str
    attention: str  # "int8" or "float": how the products of attention are computed
    accuracy: float | None  # None if it was discarded
    error: float  # of the logits, relative to the float graph's; see :func:`.running.logit_error`
    collapsed: bool


@dataclass(frozen=True)
class Restored:
    """Layers that went back to float."""

    name: str
    layers: tuple[str, ...]  # names of operations in the graph
    error_alone: float  # of the logits if these layers alone are in float, smallest first
    error_before: float  # if none is
    accuracy: float  # with these layers and those restored before them in float


@dataclass(frozen=True)
class Quantised:
    """A quantised graph and how it came to be."""

    graph: Any  # openvino.Model
    setting: str
    tried: tuple[Tried, ...]
    restored: tuple[Restored, ...]
    kept: tuple[str, ...]  # never quantised: the first layer, which reads the image, the last, what the runtime lacks
    units: int  # groups of layers that the setting quantised, including the restored
    accuracy_before: float  # of the float graph, by the function that was passed
    accuracy_after: float
    max_drop: float  # accepted loss, in points
    error: float  # of the final logits
    speed: Speed | None
    rest: Precision  # of what is not int8: `fastest` is bf16 where the CPU has it

    @property
    def drop(self) -> float:
        """The loss of accuracy in points; negative if it rose."""
        return 100 * (self.accuracy_before - self.accuracy_after)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, without the graph."""
        fields = {name: value for name, value in self.__dict__.items() if name != "graph"}
        plain = {name: [asdict(each) for each in fields.pop(name)] for name in ("tried", "restored")}
        speed = fields.pop("speed")
        return {**fields, **plain, "kept": list(self.kept), "drop": self.drop, "speed": speed and asdict(speed)}

    def lines(self) -> list[str]:
        """Return the report, one sentence per line."""
        return [
            f"int8 with {self.setting}: accuracy {self.accuracy_after:.2%}, before {self.accuracy_before:.2%}; "
            f"loss {self.drop:.2f} points, accepted {self.max_drop:g}",
            *(
                f"back in float: {each.name}, because the logits' error fell from {each.error_before:.1%} to "
                f"{each.error_alone:.1%} with it alone; accuracy then {each.accuracy:.2%}"
                for each in self.restored
            ),
            *([] if self.speed is None else [_speed_line(self.speed)]),
        ]


def quantise(
    graph: Any,
    calibration: Iterable[NDArray[Any]],
    accuracy: Accuracy,
    max_drop: float = MAX_DROP,
    tell: Callable[[str], None] = lambda line: None,
    *,
    weights: Mapping[str, NDArray[Any]] | None = None,
    time_batch: int | None = _TIMED_BATCH,
    runtime: Runtime = OPENVINO,
    several: bool = False,
) -> Quantised:
    """Quantise a float OpenVINO graph with one input to int8; the same arguments give the same graph.

    Args:
        graph: The graph, an ``openvino.Model``; it is not changed.
        calibration: Inputs of the graph, (B, ...) each. About 300 images are enough; their sizes may
            differ if the graph resizes.
        accuracy: Returns the accuracy of a graph, in [0, 1], on other images than those for calibration, with what is
            not int8 in a given precision. Report the accuracy of the result on a third set: this one chose among
            graphs. :class:`.running.Top1` is such a function.
        max_drop: The accepted loss of accuracy, in points (hundredths).
        tell: Gets a line for the user before each step that takes time, and those of the report.
        weights: The model's parameters by name, which give layers their names in the report.
        time_batch: Number of images in the batch that is timed, or None for no timing.
        runtime: Computes the graphs, for whatever is measured here.
        several: Whether an image may have several labels, each with a probability of its own.

    Raises:
        MissingExtraError: OpenVINO or NNCF is missing.
        UsageError: `max_drop` is negative.
        DataError: There are no calibration images.
        OutputError: No graph in int8 is within `max_drop`, or `accuracy` returns no fraction.
    """
    check_installed()
    if not max_drop >= 0:
        raise UsageError(f"--max-drop is {max_drop:g}, it must be 0 or more points of accuracy")
    images = _single_images(calibration)
    task = _Task(graph, images, accuracy, tell, runtime, difference=partial(logit_error, several=several))
    tell("int8: measuring the float graph")
    before = task.measured(graph, "float32")
    if not runtime.has_bf16:
        task.rest = "float32"
    elif 100 * (before - (fastest := task.measured(graph, "fastest"))) > max_drop + 1e-9:
        task.rest = "float32"
        tell(f"int8: accuracy {fastest:.2%} in bf16 alone, before {before:.2%}: what is not int8 stays in float32")
    try:
        result = _kept(task, before, max_drop, weights or {}, time_batch)
    except _LossError:
        if task.rest == "float32":
            raise
        task.rest = "float32"
        tell("int8: the loss is too large with bf16 in what is not int8; once more with float32 there")
        result = _kept(task, before, max_drop, weights or {}, time_batch)
    for line in result.lines():
        tell(line)
    return result


def _kept(
    task: _Task, before: float, max_drop: float, weights: Mapping[str, NDArray[Any]], time_batch: int | None
) -> Quantised:
    """Choose a setting, and return layers to float until the accuracy is close enough to that before."""
    candidates, tried = _candidates(task, before, max_drop)
    if not candidates:
        found = "; ".join(f"{each.setting}: logits off by {each.error:.0%}" for each in tried)
        raise OutputError(f"int8 destroys this model ({found}): calibrate on images like those to come, or omit int8")
    setting, model, after = min(candidates, key=lambda each: _preference(each[0], before, max_drop, tried))
    names = layer_names(task.graph, weights)
    units = quantised_units(model, names)
    restored: list[Restored] = []
    if 100 * (before - after) > max_drop + 1e-9:
        model, restored = _restore_until(task, model, units, before, max_drop)
        after = restored[-1].accuracy
    final, after, error = _folded(task, model, before - max_drop / 100, after)
    batch = None if time_batch is None else _batch(task.images, time_batch)
    speed = None if batch is None else task.runtime.compare_speed(task.graph, final, batch, rest=task.rest)
    never = (*float_layers(task.graph)[1], *task.runtime.in_float)
    kept = tuple(dict.fromkeys(names.get(layer, layer) for layer in never))
    return Quantised(
        final,
        setting,
        tuple(tried),
        tuple(restored),
        kept,
        len(units),
        before,
        after,
        max_drop,
        error,
        speed,
        task.rest,
    )


class _LossError(OutputError):
    """No graph is within the accepted loss, however many layers are back in float."""


class _Task:
    """What every step needs: the float graph and its logits, the images, the accuracy, and where to tell."""

    def __init__(
        self,
        graph: Any,
        images: list[NDArray[Any]],
        accuracy: Accuracy,
        tell: Callable[[str], None],
        runtime: Runtime,
        *,
        difference: Callable[..., float],
    ) -> None:
        self.graph, self.images, self.tell, self._accuracy = graph, images, tell, accuracy
        self.runtime, self.difference = runtime, difference
        self.rest: Precision = "fastest"
        self.compared = images[:: -(-len(images) // _COMPARED_IMAGES)]  # of all classes, if they are sorted by class
        self._expected = runtime.logits_of(graph, self.compared)
        self._inputs, self._calibrated = runtime.graph_inputs(images), dict[str, Any]()

    def calibrated(self, setting: str) -> Any:
        """Return the graph as NNCF quantises it in a setting; it does it once, whatever `rest` is."""
        if setting not in self._calibrated:
            self.tell(f"int8: calibrating on {len(self.images)} images, {setting}")
            alpha, in_float = SETTINGS[setting], self.runtime.in_float
            self._calibrated[setting] = quantised(self.graph, self._inputs, alpha, in_float)
        return self._calibrated[setting]

    def measured(self, graph: Any, precision: Precision | None = None) -> float:
        """Return the accuracy of a graph, with what is not int8 in `rest` unless another precision is given."""
        value = self._accuracy(graph, precision or self.rest)
        if not 0 <= value <= 1:
            raise OutputError(f"the accuracy of the graph is {value}, it must be a fraction from 0 to 1")
        return value

    def error(self, graph: Any, step: int = 1) -> float:
        """Return the error of a graph's logits on every `step`-th of the compared images."""
        logits = self.runtime.logits_of(graph, self.compared[::step], self.rest)
        return self.difference(logits, self._expected[::step])


def _single_images(calibration: Iterable[NDArray[Any]]) -> list[NDArray[Any]]:
    """Return the calibration inputs one by one, (1, ...) each; their heights and widths may differ."""
    images = [batch[i : i + 1] for batch in calibration for i in range(len(batch))]
    if not images:
        raise DataError("int8 needs images to calibrate with, and got none: name a folder of images like those to come")
    return images


def _candidates(task: _Task, before: float, max_drop: float) -> tuple[list[tuple[str, Any, float]], list[Tried]]:
    """Try each setting; return name, graph and accuracy of those that are sound, and a record of all."""
    found, tried = [], []
    for setting in SETTINGS:
        model, attention, error = _with_attention(task, task.calibrated(setting))
        collapsed = not error < _COLLAPSED
        value = None if collapsed else task.measured(model)
        tried.append(Tried(setting, attention, value, error, collapsed))
        if value is None:
            task.tell(f"int8: {setting} is discarded, its logits are off by {error:.0%}")
            continue
        how = f"{setting}, attention in {attention}"
        task.tell(f"int8: {how}: accuracy {value:.2%}, before {before:.2%}; logits off by {error:.1%}")
        found.append((setting, model, value))
    return found, tried


def _with_attention(task: _Task, model: Any) -> tuple[Any, str, float]:
    """Return the graph with the products of attention in int8 or in float, which of them, and the logits' error.

    OpenVINO 2026.4.1 computes int8 attention on 16 tokens with 16 channels wrongly in bf16, on a CPU with AMX: the
    error of the logits is then about 1. Other shapes from 16 to 577 tokens with 8 to 96 channels are right.
    """
    error = task.error(model)
    attention = [unit for unit in quantised_units(model, {}) if unit.attention]
    if not attention:
        return model, "float", error
    other = restore(model, task.graph, attention)
    error_in_float = task.error(other)
    if error <= _MORE * error_in_float:
        return model, "int8", error
    return other, "float", error_in_float


def _preference(setting: str, before: float, max_drop: float, tried: list[Tried]) -> tuple[float, float]:
    """Return a key that is smallest for the best setting: no loss beyond the accepted one, then the smallest error."""
    this = next(each for each in tried if each.setting == setting)
    assert this.accuracy is not None
    return max(0.0, 100 * (before - this.accuracy) - max_drop), this.error


def _restore_until(
    task: _Task, model: Any, units: list[Unit], before: float, max_drop: float
) -> tuple[Any, list[Restored]]:
    """Return layers to float one unit at a time until the accuracy is close enough; return the graph and the units."""
    task.tell(f"int8: the loss is too large; finding the layers that cause it, {len(units)} candidates")
    base = task.error(model, _RANKING_STEP)
    alone = [task.error(restore(model, task.graph, [unit]), _RANKING_STEP) for unit in units]
    order = sorted(range(len(units)), key=lambda index: alone[index])
    restored: list[Restored] = []
    for count, index in enumerate(order[:-1], 1):  # with the last one too, nothing would be int8
        graph = restore(model, task.graph, [units[i] for i in order[:count]])
        value = task.measured(graph)
        restored.append(Restored(units[index].name, units[index].layers, alone[index], base, value))
        task.tell(f"int8: {units[index].name} back in float: accuracy {value:.2%}, before {before:.2%}")
        if 100 * (before - value) <= max_drop + 1e-9:
            return graph, restored
    loss = min((100 * (before - each.accuracy) for each in restored), default=float("nan"))
    raise _LossError(
        f"int8 loses {loss:.2f} points of accuracy at best, with {len(restored)} of {len(units)} groups of layers in "
        f"float; accepted are {max_drop:g}: raise --max-drop, calibrate on more images, or export without int8"
    )


def _folded(task: _Task, model: Any, least: float, accuracy: float) -> tuple[Any, float, float]:
    """Fold SmoothQuant's factors if the accuracy stays at least `least`; return graph, accuracy and logits' error."""
    error, folded = task.error(model), fold(model)
    change = task.difference(*(task.runtime.logits_of(each, task.compared, "float32") for each in (folded, model)))
    if change < max(_ROUNDING, error / 2):
        value = task.measured(folded)
        if value >= least - 1e-11:
            return folded, value, task.error(folded)
    return model, accuracy, error


def _batch(images: list[NDArray[Any]], size: int) -> NDArray[Any]:
    """Return a batch of so many images of the first one's size, repeated if there are fewer."""
    same = [image for image in images if image.shape == images[0].shape]
    return np.concatenate([same[i % len(same)] for i in range(size)])


def _speed_line(speed: Speed) -> str:
    """Say what int8 gains on this machine, or that it gains nothing."""
    figures = (
        f"{speed.after:.1f} images/s at batch {speed.batch} against {speed.before:.1f} in {speed.precision}: "
        f"{speed.ratio:.2f} times (rounds {speed.low:.2f} to {speed.high:.2f})"
    )
    if speed.ratio <= 1:
        return f"int8 is not faster on this machine, {figures}: prefer the float file here"
    return f"int8 on this machine: {figures}"
