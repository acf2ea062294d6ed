"""The fsspec file system of an address, by scheme: what it needs installed, and its own retries turned off.

Tries are made in one place, `requests.py`, whose pauses suit a batch that waits; those of the libraries are seconds.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import types
from collections.abc import Sequence
from typing import Any

from vitreous.errors import MissingExtraError

__all__ = ["is_absent", "is_denied", "open_filesystem", "read_range", "read_whole", "remove"]

_PACKAGES = {"s3": "'vitreous[remote]'", "gs": "'vitreous[gs]'", "az": "'vitreous[az]'", "hf": "huggingface_hub"}
_CONNECT, _READ = 10, 30  # seconds until a connection, and an answer, is given up
_CONNECTIONS = 64  # at a time, of a process: as many as a batch has images


def open_filesystem(address: str) -> tuple[Any, str]:
    """Return a new file system and the path of the address in it; raise MissingExtraError without its package."""
    scheme = address.partition(":")[0]
    try:
        import fsspec

        # A listing that is kept would hide what another process has written meanwhile.
        options = {"skip_instance_cache": True, "use_listings_cache": False} | _options(scheme)
        if scheme == "gs":
            return _plain_gcs(address, options)
        system, root = fsspec.core.url_to_fs(address, **options)
    except ImportError as error:
        raise MissingExtraError(
            f"{scheme}:// needs a package that is not installed: pip install {_PACKAGES[scheme]}"
        ) from error
    if scheme == "s3":
        system.retries = 1
    if scheme == "az":  # keywords of each download and upload
        system._timeout_kwargs["retry_total"] = 0
    return system, root


async def read_range(system: Any, path: str, offset: int, length: int) -> bytes:
    """Return bytes of an object, fewer if it ends before, from the event loop of fsspec."""
    if system.async_impl:
        return bytes(await system._cat_file(path, start=offset, end=offset + length))
    read = functools.partial(_read_hub, system) if "hf" in system.protocol else system.cat_file
    return bytes(await asyncio.to_thread(read, path=path, start=offset, end=offset + length))


def read_whole(system: Any, path: str) -> bytes:
    """Return an object."""
    return bytes(_read_hub(system, path) if "hf" in system.protocol else system.cat_file(path))


def remove(system: Any, paths: Sequence[str]) -> None:
    """Remove objects; in a repository of the Hub in one commit."""
    if "hf" not in system.protocol:
        system.rm(list(paths))
        return
    from huggingface_hub import CommitOperationDelete, HfApi

    places = [system.resolve_path(path) for path in paths]
    one = places[0]
    HfApi().create_commit(
        one.repo_id,
        [CommitOperationDelete(place.path_in_repo) for place in places],
        commit_message=f"Delete {len(places)} files",
        repo_type=one.repo_type,
        revision=one.revision,
    )


def is_absent(error: Any) -> bool:
    """Return whether an error of a library says that an object, or what would hold it, is not there."""
    return isinstance(error, FileNotFoundError) or _is_a(error, "EntryNotFoundError", "RepositoryNotFoundError")


def is_denied(error: Any) -> bool:
    """Return whether an error of a library says that the credentials, or their absence, do not allow it."""
    return (
        isinstance(error, PermissionError)
        or _is_a(error, "NoCredentialsError", "GatedRepoError", "ClientAuthenticationError")
        or (isinstance(error, OSError) and str(error).startswith("Forbidden: "))  # gcsfs
    )


def _is_a(error: Any, *names: str) -> bool:
    """Return whether an error is of a class of these names, whose library need not be there."""
    return any(kind.__name__ in names for kind in type(error).__mro__)


def _read_hub(system: Any, path: str, start: int = 0, end: int | None = None) -> bytes:
    """Return bytes of a file on the Hub by one request; its own file system reads ahead, and waits between tries."""
    hub: Any = importlib.import_module("huggingface_hub.utils")

    asked = {} if end is None else {"Range": f"bytes={start}-{end - 1}"}
    headers = hub.build_hf_headers() | asked
    answer = hub.get_session().get(system.url(path), headers=headers, timeout=_READ)
    hub.hf_raise_for_status(answer)
    return bytes(answer.content)


def _options(scheme: str) -> dict[str, Any]:
    if scheme == "s3":
        limits = {"connect_timeout": _CONNECT, "read_timeout": _READ, "max_pool_connections": _CONNECTIONS}
        return {"config_kwargs": limits | {"retries": {"total_max_attempts": 1}}, "session": _s3_session()}
    if scheme == "gs":
        import aiohttp

        return {"requests_timeout": aiohttp.ClientTimeout(sock_connect=_CONNECT, sock_read=_READ)}
    if scheme == "az":
        return {"connection_timeout": _CONNECT, "read_timeout": _READ}
    if scheme == "hf":  # which reads the kind of each object from it; `Store` forgets it before it lists
        return {"use_listings_cache": True}
    return {}


def _plain_gcs(address: str, options: dict[str, Any]) -> tuple[Any, str]:
    """Return the file system of JSON requests: the other one asks for a bucket's type by gRPC, which forks break."""
    from gcsfs.core import GCSFileSystem

    system = GCSFileSystem(**options)
    once = getattr(type(system)._request, "__wrapped__", None)  # without the decorator that tries six times
    if once is not None:
        system._request = types.MethodType(once, system)
    return system, system._strip_protocol(address)


@functools.cache
def _s3_session() -> Any:
    """Return what connections of this process and of its forks share: no connection, but the service's description."""
    from aiobotocore.session import get_session

    return get_session()
