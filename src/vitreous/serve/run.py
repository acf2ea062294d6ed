"""The life of a service: engines start, the socket listens, signals drain.

1. The socket is bound, so that a port in use is told before anything is loaded.
2. Each model's engine process starts, and loads the model while this process imports FastAPI.
3. Requests are answered; `/readyz` is 503 until every model answers.
4. SIGTERM or Ctrl-C: no new connection is taken, what was accepted is answered, then the engine processes end.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import signal
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from vitreous.errors import CheckpointError, MissingExtraError, UsageError, VitreousError
from vitreous.serve.settings import Settings

if TYPE_CHECKING:
    from vitreous.serve.http.service import Service

__all__ = ["as_error", "bind", "require_packages", "serve", "url_of"]

_BACKLOG = 1024
_DRAINING = 5.0  # seconds beyond the time of a request in which connections must end


def serve(settings: Settings, announce: Callable[[str], None]) -> None:
    """Serve until a signal ends the service.

    Args:
        settings: Models, address and limits.
        announce: Called with the address once the socket listens, and once every model answers.

    Raises:
        MissingExtraError: If the packages of a service are not installed.
        UsageError: If the address cannot be bound.
        VitreousError: If a model cannot be loaded.
    """
    require_packages()
    listener = bind(settings.host, settings.port)
    with contextlib.closing(listener):
        asyncio.run(_run(settings, listener, announce))


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that has the address and does not listen yet.

    Raises:
        UsageError: If the address cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"cannot listen on {host} port {port}: {reason}; name another with --port or --host"
        ) from error
    return listener


def require_packages() -> None:
    """Raise MissingExtraError if a package of a service is not installed."""
    for package in ("fastapi", "uvicorn", "python_multipart", "prometheus_client"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(f"a service needs {package}, which is not installed: pip install 'vitreous[serve]'")


def url_of(host: str, port: int) -> str:
    """Return the address of a service as clients write it."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def as_error(reason: str, code: int) -> VitreousError:
    """Return the error of a model that an engine process could not load; ``code`` is the exit code it stands for."""
    return UsageError(reason) if code == UsageError.exit_code else CheckpointError(reason)


async def _run(settings: Settings, listener: socket.socket, announce: Callable[[str], None]) -> None:
    from vitreous.serve.http.service import Service

    service = Service(settings)
    await service.start()  # first: the engines load while the rest is imported
    try:
        await _listen(settings, service, listener, announce)
    finally:
        await service.stop()


async def _listen(
    settings: Settings, service: Service, listener: socket.socket, announce: Callable[[str], None]
) -> None:
    import uvicorn

    from vitreous.serve.engine.engine_process import EngineFailed
    from vitreous.serve.http.app import create_app
    from vitreous.serve.http.connections import Connections, guarded_protocol, raise_descriptor_limit

    limits = settings.limits
    connections = Connections(limits, raise_descriptor_limit(limits.connections))
    service.count_connections = lambda: len(connections.open)
    config = uvicorn.Config(
        create_app(service),
        http=guarded_protocol(connections),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_keep_alive=round(limits.idle_seconds),
        timeout_graceful_shutdown=round(limits.seconds + _DRAINING),
    )
    server = uvicorn.Server(config)
    # Its own handlers would raise the signal again at the end.
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    host, port = listener.getsockname()[:2]
    address = url_of(host, port)
    loading = asyncio.create_task(service.first_ready())
    watching = asyncio.create_task(connections.watch())

    def loaded(task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is not None:
            server.should_exit = True
        else:
            announce(f"ready: {address}")

    loading.add_done_callback(loaded)
    with _signals(server):
        listener.listen(_BACKLOG)  # uvicorn would only after the announcement, and refuse who is faster
        announce(f"listening on {address}")
        await server.serve(sockets=[listener])
    watching.cancel()
    if not loading.done():
        loading.cancel()
    elif (failed := loading.exception()) is not None:
        raise as_error(failed.reason, failed.code) if isinstance(failed, EngineFailed) else failed


@contextlib.contextmanager
def _signals(server: object) -> Iterator[None]:
    """Let SIGTERM and SIGINT end the server after its requests; a second one does not wait for them."""
    loop = asyncio.get_running_loop()

    def end() -> None:
        server.force_exit = server.should_exit  # type: ignore[attr-defined]
        server.should_exit = True  # type: ignore[attr-defined]

    numbers = (signal.SIGTERM, signal.SIGINT)
    with contextlib.suppress(NotImplementedError):  # Windows
        for number in numbers:
            loop.add_signal_handler(number, end)
    try:
        yield
    finally:
        with contextlib.suppress(NotImplementedError):
            for number in numbers:
                loop.remove_signal_handler(number)
