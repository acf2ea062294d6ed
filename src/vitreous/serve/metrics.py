"""What a service tells Prometheus, in a registry of its own. Times are in seconds."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

__all__ = ["CONTENT_TYPE", "Metrics", "expected_confidence"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The media type of Prometheus' text format."""

_MOST_LABELS = 200  # classes that are counted one by one; each is a time series
_WINDOW = 1000  # predictions of which the mean confidence is compared
_SECONDS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_CONFIDENCES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)


class Metrics:
    """Counters, gauges and histograms of one service."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)

        def make(kind: Any, name: str, text: str, labels: tuple[str, ...] = (), **options: Any) -> Any:
            return kind(f"vitreous_{name}", text, labels, registry=self.registry, **options)

        self.requests = make(Counter, "requests", "Requests by route and status.", ("route", "status"))
        self.seconds = make(
            Histogram, "request_seconds", "Time from a request's head to its answer.", ("route",), buckets=_SECONDS
        )
        self.rejections = make(Counter, "rejections", "Requests refused for a limit, by reason.", ("reason",))
        self.batch_size = make(Histogram, "batch_size", "Images per forward pass.", ("model",), buckets=_SIZES)
        self.batch_seconds = make(Histogram, "batch_seconds", "Time of a forward pass.", ("model",), buckets=_SECONDS)
        self.queue = make(Gauge, "queue_images", "Images accepted and not answered.", ("model",))
        self.connections = make(Gauge, "connections", "Open connections.")
        self.engine_up = make(Gauge, "engine_up", "Whether an engine answers, 0 or 1.", ("model",))
        self.engine_restarts = make(Counter, "engine_restarts", "Engine processes that died.", ("model",))
        self.reloads = make(Counter, "reloads", "Replaced engines by outcome.", ("model", "outcome"))
        self.predictions = make(
            Counter, "predictions", "Predicted classes; of several labels, each that an image has.", ("model", "label")
        )
        self.unsure = make(Counter, "unsure", "Predictions below the model's threshold.", ("model",))
        self.unreadable = make(Counter, "unreadable_images", "Images that could not be read.", ("model",))
        self.confidence = make(
            Histogram, "confidence", "Highest probability of each prediction.", ("model",), buckets=_CONFIDENCES
        )
        self.expected = make(
            Gauge, "confidence_expected", "Mean confidence to expect: accuracy on held-out images.", ("model",)
        )
        self.drift = make(
            Gauge, "confidence_drift", f"Mean confidence of the last {_WINDOW} predictions, less expected.", ("model",)
        )
        self._recent: dict[str, deque[float]] = {}
        self._reference: dict[str, float | None] = {}
        self._counted: dict[str, bool] = {}

    def model_loaded(self, name: str, description: Mapping[str, Any]) -> None:
        """Begin to count for a model, or for its new version."""
        self._counted[name] = len(description.get("classes", ())) <= _MOST_LABELS
        self._recent[name] = deque(maxlen=_WINDOW)
        self._reference[name] = expected_confidence(description)
        for gauge in (self.expected, self.drift):  # of the version before
            with contextlib.suppress(KeyError):
                gauge.remove(name)
        if (reference := self._reference[name]) is not None:
            self.expected.labels(name).set(reference)
        for counter in (self.engine_restarts, self.unsure, self.unreadable):
            counter.labels(name)  # a counter that exists from the start has a rate

    def predicted(self, name: str, record: Mapping[str, Any]) -> None:
        """Count a prediction."""
        confidence = float(record["probability"])
        given = record.get("labels", [record["label"]]) or ["(none)"]
        for label in given if self._counted.get(name) else ["(all)"]:
            self.predictions.labels(name, label.encode("utf-8", "backslashreplace").decode()).inc()
        self.confidence.labels(name).observe(confidence)
        if record.get("unsure"):
            self.unsure.labels(name).inc()
        recent = self._recent.setdefault(name, deque(maxlen=_WINDOW))
        recent.append(confidence)
        if self._reference.get(name) is None and len(recent) == _WINDOW:
            self._reference[name] = sum(recent) / _WINDOW  # no scores in the file: the first predictions are the norm
            self.expected.labels(name).set(self._reference[name])

    def exposition(self, refresh: Callable[[], None]) -> bytes:
        """Return all metrics as text, after bringing the gauges up to date."""
        refresh()
        for name, recent in self._recent.items():
            if (reference := self._reference.get(name)) is not None and recent:
                self.drift.labels(name).set(sum(recent) / len(recent) - reference)
        return generate_latest(self.registry)


def expected_confidence(description: Mapping[str, Any]) -> float | None:
    """Return the accuracy that a model file records, which a calibrated model's mean confidence equals; or None."""
    scores = description.get("scores") or {}
    for split in ("test", "val"):
        found = scores.get(split)
        if isinstance(found, Mapping) and isinstance(top1 := found.get("top1"), int | float) and 0 < top1 <= 1:
            return float(top1)
    return None
