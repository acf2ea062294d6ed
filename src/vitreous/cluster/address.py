"""Which Ray cluster a command runs on, and the connection to it."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitreous.errors import MissingExtraError, UsageError, VitreousError, first_line
from vitreous.machine.cores import num_cores

__all__ = ["check_address", "cluster_resources", "connect", "is_local", "shared_path"]

_LOCAL, _AUTO = "ray://local", "ray://auto"
_CLIENT = re.compile(r"ray://(?P<host>[^\s/:]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})")
_REACH = 10.0  # seconds within which HOST:PORT must accept a connection


def check_address(address: str) -> None:
    """Check the value of ``--on``, and that Ray is installed; import nothing of it.

    Raises:
        UsageError: If it is no address of a Ray cluster.
        MissingExtraError: If Ray is not installed.
    """
    found = _CLIENT.fullmatch(address)
    if address not in (_LOCAL, _AUTO) and (found is None or not 0 < int(found["port"]) < 1 << 16):
        raise UsageError(
            f"--on is '{address}': write ray://HOST:PORT (of the cluster's client server, usually port 10001), "
            f"{_AUTO} on a machine of the cluster, or {_LOCAL} for the cores of this machine"
        )
    missing = [name for name in ("ray", "pyarrow") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(f"--on needs {' and '.join(missing)}: pip install 'vitreous[ray]'")


def connect(address: str, workers: int = 1) -> Any:
    """Connect to a cluster, unless this process is connected already, and return the module ``ray``.

    Args:
        address: A value that :func:`check_address` has accepted.
        workers: Processes that a local cluster must have room for.

    Raises:
        VitreousError: If there is no such cluster.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would report each use to its makers
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it hides the GPUs of processes without one
    import ray

    if ray.is_initialized():
        return ray
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    with _kept_signals():
        try:
            if address == _LOCAL:
                # Without "local", Ray would take a cluster that `ray start` has left on this machine.
                ray.init("local", num_cpus=max(num_cores(), workers), include_dashboard=False, **quiet)
            elif address == _AUTO:
                ray.init(address="auto", **quiet)
            else:
                _reach(address)
                ray.init(address=address, **quiet)
        except (OSError, RuntimeError, ValueError, TimeoutError) as error:
            raise VitreousError(
                f"no Ray cluster at {address} ({first_line(error)}): start one with `ray start --head`, or check the "
                "address, that both sides have the same versions of Python and Ray, and, if it asks for a token, "
                "that RAY_AUTH_MODE=token is set and the token is in ~/.ray/auth_token"
            ) from error
    # What Ray says of a lost worker would be printed between the lines of the output.
    importlib.import_module("ray._private.worker")._worker_logs_enabled = False  # type: ignore[attr-defined]
    return ray


def is_local(address: str) -> bool:
    """Return whether an address stands for a new cluster on this machine."""
    return address == _LOCAL


def shared_path(path: str) -> str:
    """Return a path as processes in other folders need it; a hub id or a short name as it is."""
    file = Path(path).expanduser()
    return str(file.absolute()) if file.exists() else path


def cluster_resources(ray: Any) -> tuple[int, int, int]:
    """Return the machines of a cluster that compute, and their processors and GPUs in total."""
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    total = ray.cluster_resources()
    return max(1, len(nodes)), max(1, int(total.get("CPU", 1))), int(total.get("GPU", 0))


def _reach(address: str) -> None:
    """Open a connection at once where nobody answers; Ray would try for half a minute."""
    found = _CLIENT.fullmatch(address)
    assert found is not None  # check_address
    socket.create_connection((found["host"].strip("[]"), int(found["port"])), timeout=_REACH).close()


@contextlib.contextmanager
def _kept_signals() -> Iterator[None]:
    """Keep this program's handling of SIGTERM, which Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
