"""The models of a service, and what its requests share: metrics, the memory of bodies, keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from vitreous.errors import did_you_mean
from vitreous.serve.engine.served_model import ServedModel
from vitreous.serve.http.bodies import BodyBudget
from vitreous.serve.http.keys import KeyFile
from vitreous.serve.metrics import Metrics
from vitreous.serve.problems import Problem
from vitreous.serve.settings import Settings

__all__ = ["Service"]


class Service:
    """Everything behind the HTTP border.

    Raises:
        UsageError: If the file of keys cannot be read.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.budget = BodyBudget(settings.limits.buffered_bytes)
        self.keys = KeyFile(settings.keys) if settings.keys is not None else None
        self.models = {
            source.name: ServedModel(source, settings.limits, self.metrics, settings.reload)
            for source in settings.models
        }
        self.count_connections: Callable[[], int] = lambda: 0

    def model(self, name: str | None) -> ServedModel:
        """Return a model by its name; without a name the only one. Raise 404, or 422 if a name is needed."""
        names = ", ".join(self.models)
        if name is None:
            if len(self.models) == 1:
                return next(iter(self.models.values()))
            raise Problem(422, f"the service has several models: add ?model= with one of {names}")
        if name not in self.models:
            raise Problem(404, f"there is no model '{name}'.{did_you_mean(name, self.models)} There is {names}")
        return self.models[name]

    async def start(self) -> None:
        """Start an engine process for each model, without waiting for them."""
        for served in self.models.values():
            await served.start()

    async def first_ready(self) -> None:
        """Wait until every model answers; raise EngineFailed if one cannot be loaded."""
        await asyncio.gather(*(served.first_ready() for served in self.models.values()))

    async def stop(self) -> None:
        """End all engine processes."""
        await asyncio.gather(*(served.stop() for served in self.models.values()))

    def exposition(self) -> bytes:
        """Return the metrics as Prometheus reads them."""
        return self.metrics.exposition(self._refresh)

    def _refresh(self) -> None:
        self.metrics.connections.set(self.count_connections())
        for name, served in self.models.items():
            self.metrics.queue.labels(name).set(served.admission.images)
            self.metrics.engine_up.labels(name).set(int(served.is_ready))
