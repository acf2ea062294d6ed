"""A replica of a service on Ray Serve: the application of `vitreous serve`, with engine processes of its own."""

from __future__ import annotations

import logging
import os
import time

from starlette.types import ASGIApp

from vitreous.errors import VitreousError, first_line
from vitreous.serve.engine.engine_process import EngineFailed
from vitreous.serve.http.app import create_app
from vitreous.serve.http.service import Service
from vitreous.serve.settings import Settings

__all__ = ["Replica"]

_PATIENCE = 30.0  # seconds without an engine after which a replica is replaced; an engine that died restarts in a few


class Replica:
    """What Ray Serve has several of and sends requests to; made by it, so that it is ready once every model is."""

    async def __init__(self, settings: Settings, threads: int, operator: tuple[str, str]) -> None:  # type: ignore[misc]
        """Load the models.

        Args:
            settings: The service. Its limits are those of each replica.
            threads: Processors of each engine process.
            operator: Name and namespace of the actor that hears why a replica cannot begin.
        """
        os.environ["OMP_NUM_THREADS"] = str(threads)
        _log_with_ray()
        self._waiting_since: float | None = None
        try:
            self.service = Service(settings)
            await self.service.start()
            await self.service.first_ready()
        except Exception as error:
            await _report(error, *operator)
            raise

    async def __del__(self) -> None:
        """End the engine processes, after the last request."""
        if hasattr(self, "service"):
            await self.service.stop()

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """Return the application that answers."""
        return create_app(self.service)

    async def check_health(self) -> None:
        """Raise if a model has had no engine for so long that another replica is better."""
        missing = [name for name, served in self.service.models.items() if not served.is_ready]
        if not missing:
            self._waiting_since = None
            return
        now = time.monotonic()
        self._waiting_since = self._waiting_since or now
        if now - self._waiting_since > _PATIENCE:
            raise RuntimeError(f"no engine of model {missing[0]} for {_PATIENCE:.0f} s")


async def _report(error: Exception, operator: str, namespace: str) -> None:
    """Tell the command why this replica cannot begin."""
    import ray

    if isinstance(error, EngineFailed):
        reason, code = error.reason, error.code
    elif isinstance(error, VitreousError):
        reason, code = str(error), error.exit_code
    else:
        reason, code = f"{type(error).__name__}: {first_line(error)}", 1
    try:
        await ray.get_actor(operator, namespace).failed.remote(reason, code)
    except (ValueError, ray.exceptions.RayError):  # the command has been killed
        return


def _log_with_ray() -> None:
    """Write the lines of the service, and of its requests, to this replica's file among Ray's logs."""
    handlers = logging.getLogger("ray.serve").handlers
    for name in ("vitreous.serve", "vitreous.access"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = list(handlers), False
        logger.setLevel(logging.INFO)
