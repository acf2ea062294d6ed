"""`vitreous serve`: a model as an HTTP service."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeInt, PositiveFloat, PositiveInt

from vitreous.cli.options.cluster import add_cluster_options, refuse_idle
from vitreous.cli.options.model import add_inference_options, add_threshold_option, parse_image_size
from vitreous.cli.options.parser import Parser
from vitreous.cli.output.terminal import narrate
from vitreous.errors import UsageError
from vitreous.files.locating import expand_home
from vitreous.files.text import printable, visible
from vitreous.serve.settings import Limits, Settings, parse_models

__all__ = ["run"]


def _parser() -> Parser:
    parser = Parser(
        "serve",
        "MODEL... [options]",
        "Serve one or several models over HTTP: POST /v1/predict, /v1/embed, /v1/logits and /v1/explain, GET "
        "/v1/model, /healthz, /readyz, /metrics and /openapi.json, and a page at /. Requests are computed in batches "
        "by a process of the engine, which is restarted if it dies. Too many requests are answered with 429 and "
        "Retry-After. A changed model file is loaded without a failed request. SIGTERM and Ctrl-C answer what was "
        "accepted, then end. docs/explanation/serving.md has the interface and the limits.",
        [
            ("vitreous serve runs/photos-1", "then open http://127.0.0.1:8000"),
            ("curl --data-binary @cat.jpg -H 'Content-Type: image/jpeg' localhost:8000/v1/predict", "classify"),
            ("vitreous serve old=runs/photos-1 new=runs/photos-2", "two models: /v1/predict?model=new"),
            ("vitreous serve --new-key alice --api-keys keys.txt", "make an API key; it is shown once"),
            ("vitreous serve runs/photos-1 --host 0.0.0.0 --api-keys keys.txt", "for other machines, with keys"),
            ("vitreous serve runs/photos-1 --on ray://auto --workers 4", "four replicas on a Ray cluster"),
        ],
    )
    add, limits = parser.add_argument, Limits()
    add("models", type=str, nargs="*", default=[], metavar="MODEL", help="a model as for predict, or name=MODEL")
    add("--host", type=str, default="127.0.0.1", metavar="ADDRESS", help="address to listen on; 0.0.0.0: all")
    add("--port", type=NonNegativeInt, default=8000, help="port; 0 takes a free one")
    add("--api-keys", type=str | None, metavar="FILE", help="file of API keys: requests need one")
    add("--new-key", type=str | None, metavar="NAME", help="add a key to the file, show it, and end")
    hosts = "names that the Host header may have [on a loopback address: localhost; else any]"
    add("--allowed-hosts", type=list[str], default=[], metavar="A,B", help=hosts)
    add("--max-body", type=PositiveInt, default=limits.body_bytes >> 20, metavar="MIB", help="MiB of a request")
    add("--max-pixels", type=PositiveInt, default=limits.pixels, help="pixels of an image")
    add("--max-images", type=PositiveInt, default=limits.images, help="images in a request")
    add("--max-connections", type=PositiveInt, default=limits.connections, help="open connections")
    queue = "images of a model that wait or are computed; less while the engine cannot follow"
    add("--queue", type=PositiveInt, default=limits.queue, help=queue)
    add("--timeout", type=PositiveFloat, default=limits.seconds, metavar="S", help="seconds for a request")
    body = "seconds for the body of a request to arrive"
    add("--body-timeout", type=PositiveFloat, default=limits.body_seconds, metavar="S", help=body)
    add("--reload", type=bool, default=True, help="load a model file again when it changes")
    add("--access-log", type=bool, default=True, help="a line per request on standard error, without image data")
    add_threshold_option(parser)
    add_inference_options(parser, engines=True)
    add_cluster_options(parser, parts=False)
    return parser


def run(argv: Sequence[str]) -> int:
    """Run the verb."""
    options = _parser().parse_args(argv)
    if options.new_key is not None:
        return _make_key(options)
    if not options.models:
        raise UsageError("MODEL is missing. Usage: vitreous serve MODEL... [options]")
    refuse_idle(options)
    settings = _settings(options)
    if options.on:
        _check_cluster(options)
    _start_logs()
    if not settings.is_loopback and settings.keys is None:
        narrate(f"anyone who reaches {settings.host} may use this service: --api-keys asks for API keys")
    if settings.keys is not None:
        _note_missing_keys(settings.keys)
    if options.on:
        from vitreous.cluster.serving import serve_on

        serve_on(options.on, settings, options.workers, options.device, narrate)
    else:
        from vitreous.serve.run import serve

        serve(settings, narrate)
    narrate("the service has ended")
    return 0


def _check_cluster(options: Namespace) -> None:
    from vitreous.cluster.address import check_address

    check_address(options.on)
    if options.max_connections != Limits().connections:
        raise UsageError(
            f"--max-connections is {options.max_connections}: with --on the proxies of Ray Serve have the connections, "
            "and do not limit them; remove it"
        )


def _settings(options: Namespace) -> Settings:
    if not 0 <= options.port <= 65_535:
        raise UsageError(f"--port is {options.port}, it must be at most 65535")
    loading = {
        "device": options.device,
        "image_size": parse_image_size("--image-size", options.image_size),
        "resample": options.resample,
        "engine": options.engine,
        "precision": options.precision,
        "merge_tokens": options.merge_tokens,
        "ignore_thresholds": options.ignore_thresholds,
        "trust_code": options.trust_code,
    }
    defaults = Limits()
    limits = Limits(
        body_bytes=options.max_body << 20,
        pixels=options.max_pixels,
        images=options.max_images,
        seconds=options.timeout,
        body_seconds=options.body_timeout,
        queue=options.queue,
        batch=options.batch_size,
        buffered_bytes=max(defaults.buffered_bytes, 2 * (options.max_body << 20)),
        connections=options.max_connections,
    )
    return Settings(
        models=parse_models(options.models, loading),
        host=options.host,
        port=options.port,
        limits=limits,
        keys=expand_home(options.api_keys) if options.api_keys else None,
        hosts=tuple(options.allowed_hosts),
        reload=options.reload,
        access_log=options.access_log,
    )


def _note_missing_keys(file: Path) -> None:
    from vitreous.serve.http.keys import KeyFile

    if KeyFile(file).is_empty:
        narrate(f"'{visible(str(file))}' has no key, so that every request is refused: --new-key NAME adds one")


def _make_key(options: Namespace) -> int:
    from vitreous.serve.http.keys import new_key

    if options.api_keys is None:
        raise UsageError("--new-key needs a file: add --api-keys FILE, the same as for the service")
    key = new_key(expand_home(options.api_keys), options.new_key)
    sys.stdout.write(f"{key}\n")
    narrate(f"this key is shown once; {options.api_keys} has its SHA-256. Send it as 'Authorization: Bearer KEY'")
    return 0


class _Printable(logging.Formatter):
    """Log lines in which nothing from a client is a control character."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(record.getMessage())


def _start_logs() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Printable())
    for name in ("vitreous.serve", "vitreous.access"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
    for name in ("uvicorn", "uvicorn.error", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
