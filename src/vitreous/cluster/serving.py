"""A service on a Ray cluster: Ray Serve keeps replicas of it alive, and its proxies share the requests among them.

1. `operator.py` has Ray Serve listen, so that a port in use is told before anything is loaded.
2. Ray Serve starts the replicas (`replica.py`), each a whole service with engine processes of its own.
3. The command watches: a model that cannot be loaded ends it; a replica that is lost is replaced, and reported.
4. SIGTERM or Ctrl-C: the application is removed, once the replicas have answered what they accepted.
"""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vitreous.cluster.address import connect, is_local, shared_path
from vitreous.cluster.operator import NAMESPACE, OPERATOR, Operator
from vitreous.cluster.room import Room, room_for
from vitreous.cluster.signals import collected_signals
from vitreous.errors import MissingExtraError, UsageError, VitreousError, first_line
from vitreous.serve.run import as_error, bind, require_packages, url_of
from vitreous.serve.settings import Settings

__all__ = ["serve_on"]

_POLL = 0.25  # seconds between looks at signals and results
_LOOKING = 1.0  # seconds between looks at the replicas
_PATIENCE = 60.0  # seconds after which a wait for free processors is reported


def serve_on(
    address: str, settings: Settings, workers: int | None, device: str, announce: Callable[[str], None]
) -> None:
    """Serve on a cluster until a signal ends the service.

    Args:
        address: The cluster.
        settings: Models, address and limits; the limits are those of each replica.
        workers: How many replicas; None: as :func:`vitreous.cluster.room.room_for` chooses.
        device: The device that the user asked for.
        announce: Called with the address once the proxies listen, once every replica answers, and when one is lost.

    Raises:
        MissingExtraError: If a package is not installed.
        UsageError: If the address cannot be bound, or the cluster serves already.
        VitreousError: If a model cannot be loaded, or the cluster is lost.
    """
    require_packages()
    _require_ray_serve()
    settings = _shared(_with_port(address, settings))
    with collected_signals() as received:
        ray = connect(address, workers or 1)
        service = _RemoteService(ray, settings, room_for(ray, workers, device), announce, received)
        try:
            service.run()
        except (ray.exceptions.RayError, ConnectionError) as error:
            raise VitreousError(
                f"the cluster is lost, or Ray Serve has failed ({first_line(error)}): the same command starts the "
                "service again"
            ) from error


class _RemoteService:
    """The service as the command sees it."""

    def __init__(
        self, ray: Any, settings: Settings, room: Room, announce: Callable[[str], None], received: list[int]
    ) -> None:
        self._ray, self._settings, self._room = ray, settings, room
        self._announce, self._received = announce, received
        self._operator = self._start_operator()

    def run(self) -> None:
        """Listen, serve until a signal, and remove what was deployed."""
        if reason := self._call("open", self._settings):
            raise UsageError(reason)
        try:
            url = url_of(self._settings.host, self._settings.port)
            self._announce(f"listening on {url}")
            if not self._call("has_own_proxies"):
                self._announce("Ray Serve was running: its proxies keep their settings (docs/how-to/cluster.md)")
            if reason := self._call("deploy", self._settings, self._room):
                raise UsageError(reason)
            if self._wait_for_all():
                self._announce(f"ready: {url}")
                self._watch()
        finally:
            self._remove()

    def _wait_for_all(self) -> bool:
        """Wait until every replica answers; return False if a signal came first."""
        start, is_told = time.monotonic(), False
        while not self._received:
            state = self._call("state")
            if state.failures:
                raise as_error(*state.failures[0])
            if state.problem:
                raise VitreousError(f"Ray Serve cannot start the replicas ({state.problem})")
            if state.is_ready:
                return True
            if not is_told and time.monotonic() - start > _PATIENCE:
                is_told = True
                self._announce(f"not ready after {_PATIENCE:.0f} s; {self._room.compare_with_free(self._ray)}")
            time.sleep(_POLL)
        return False

    def _watch(self) -> None:
        """Report replicas that are lost, until a signal."""
        running = self._room.workers
        while not self._received:
            state = self._call("state")
            for reason, _ in state.failures:
                self._announce(f"a replica does not start: {reason}")
            if state.problem:
                raise VitreousError(f"the service has ended: {state.problem}")
            if state.running != running:
                running = state.running
                self._announce(f"{running} of {self._room.workers} replicas answer")
            self._pause(_LOOKING)

    def _remove(self) -> None:
        """Remove the application; a further signal does not wait for its last requests."""
        signals = len(self._received)
        with contextlib.suppress(self._ray.exceptions.RayError, ConnectionError):
            removal = self._operator.remove.remote(self._settings.limits.seconds)
            while len(self._received) == signals:
                if self._ray.wait([removal], timeout=_POLL)[0]:
                    self._ray.get(removal)
                    self._ray.kill(self._operator)  # so that the same command may follow at once
                    return

    def _start_operator(self) -> Any:
        if self._is_taken():
            raise UsageError(
                "another `vitreous serve --on` serves from this cluster: end it, or serve its models from this "
                "command, as name=MODEL"
            )
        options = {"name": OPERATOR, "namespace": NAMESPACE, "num_cpus": 0, "max_concurrency": 4}
        return self._ray.remote(**options)(Operator).remote()

    def _is_taken(self) -> bool:
        try:
            self._ray.get_actor(OPERATOR, NAMESPACE)
        except ValueError:  # nobody has the name
            return False
        return True

    def _call(self, method: str, *arguments: Any) -> Any:
        """Return the result of a method of the operator; signals are heard meanwhile."""
        reference = getattr(self._operator, method).remote(*arguments)
        while not self._ray.wait([reference], timeout=_POLL)[0]:
            pass
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, ImportError):
                raise MissingExtraError(
                    f"the machines of the cluster need the extras too ({first_line(error.cause)}): "
                    "pip install 'vitreous[ray,serve]' there"
                ) from error
            raise

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._received and time.monotonic() < end:
            time.sleep(_POLL)


def _require_ray_serve() -> None:
    missing = [name for name in ("grpc_reflection", "aiohttp") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(f"--on needs {' and '.join(missing)}: pip install 'vitreous[ray,serve]'")


def _with_port(address: str, settings: Settings) -> Settings:
    """Choose a port for 0; raise if this machine, where that of a local cluster listens, has it in use."""
    if is_local(address):
        with contextlib.closing(bind(settings.host, settings.port)) as listener:
            return replace(settings, port=listener.getsockname()[1])
    if not settings.port:
        raise UsageError("--port is 0: the proxies of all machines listen on one port, so name it")
    return settings


def _shared(settings: Settings) -> Settings:
    """Name files as the replicas find them, and raise if the file of keys is none."""
    models = tuple(replace(source, path=shared_path(source.path)) for source in settings.models)
    if settings.keys is None:
        return replace(settings, models=models)
    from vitreous.serve.http.keys import KeyFile

    KeyFile(settings.keys)
    return replace(settings, models=models, keys=settings.keys.absolute())
