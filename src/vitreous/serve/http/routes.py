"""What the service answers: predictions, vectors, class maps, the model, health and metrics."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response

from vitreous.serve.engine.engine_process import Job
from vitreous.serve.engine.served_model import ServedModel
from vitreous.serve.engine.wire import Frame
from vitreous.serve.http.bodies import Upload, check_image, read_uploads
from vitreous.serve.http.schemas import Embeddings, Health, ModelDocument, Predictions, image_body, problems
from vitreous.serve.http.service import Service
from vitreous.serve.metrics import CONTENT_TYPE
from vitreous.serve.problems import Problem

__all__ = [
    "METHODS",
    "describe",
    "embed",
    "explain",
    "healthz",
    "logits",
    "metrics",
    "predict",
    "readyz",
    "router",
    "to_json",
]

METHODS = ("gradient-attention", "legrad", "grad-cam", "rollout", "attention")
"""Map methods that take a few passes; those that take hundreds are for `vitreous inspect`."""

_WITH_LAYER = ("grad-cam", "attention")
_WITHOUT_CLASS = ("rollout", "attention")  # what a model without a head has
_EXPLAIN_WEIGHT = 4  # images that a class map counts for
_RETRY = 2  # seconds after which to repeat what took too long
_IMAGES = (400, 401, 403, 404, 408, 413, 415, 422, 429, 500, 503)

router = APIRouter()
"""The routes of the interface; their docstrings are the text of its OpenAPI page."""

ModelName = Annotated[
    str | None, Query(max_length=64, description="Which model; needed only if the service has several.")
]
Encoding = Annotated[Literal["json", "base64"], Query(description="base64: float32, little-endian, in a string.")]


def to_json(document: Any, headers: dict[str, str] | None = None) -> Response:
    """Return an answer; ASCII, so that class names which are not valid Unicode come through."""
    return Response(json.dumps(document, allow_nan=False), media_type="application/json", headers=headers)


@router.post(
    "/v1/predict",
    operation_id="predict",
    summary="Classify images",
    response_model=Predictions,
    responses=problems(*_IMAGES),
    openapi_extra=image_body(),
)
async def predict(
    request: Request,
    model: ModelName = None,
    top_k: Annotated[int, Query(ge=1, le=1000, description="Classes per image.")] = 5,
) -> Response:
    """Return the most probable classes of each image; `unsure`, `set` and `labels` by the thresholds of the model file.

    If some of several images cannot be read, the others are answered and these have an `error`.
    """
    service = _service(request)
    served = service.model(model)
    uploads, frames = await _answers(request, served, {"work": "predict", "top_k": top_k})
    found = []
    for upload, frame in zip(uploads, frames, strict=True):
        if isinstance(frame, Problem):
            found.append({"name": upload.name, "error": frame.detail})
            continue
        found.append({"name": upload.name, **frame[0]["result"]})
        service.metrics.predicted(served.name, frame[0]["result"])
    return to_json({"model": served.name, "version": served.version, "predictions": found})


@router.post(
    "/v1/embed",
    operation_id="embed",
    summary="Compute feature vectors",
    response_model=Embeddings,
    responses=problems(*_IMAGES),
    openapi_extra=image_body(),
)
async def embed(request: Request, model: ModelName = None, encoding: Encoding = "json") -> Response:
    """Return the features of each image: the input of the head's last layer."""
    return await _vectors(request, model, "embed", encoding)


@router.post(
    "/v1/logits",
    operation_id="logits",
    summary="Compute logits",
    response_model=Embeddings,
    responses=problems(*_IMAGES),
    openapi_extra=image_body(),
)
async def logits(request: Request, model: ModelName = None, encoding: Encoding = "json") -> Response:
    """Return the outputs of each image before temperature and softmax."""
    return await _vectors(request, model, "logits", encoding)


@router.post(
    "/v1/explain",
    operation_id="explain",
    summary="Draw a class map",
    response_class=Response,
    responses={
        200: {"description": "The map.", "content": {"image/png": {"schema": {"type": "string", "format": "binary"}}}},
        **problems(*_IMAGES),
    },
    openapi_extra=image_body(several=False),
)
async def explain(  # noqa: PLR0917 - the parameters of a query, which FastAPI passes by name
    request: Request,
    model: ModelName = None,
    target: Annotated[str | None, Query(max_length=200, description="A class, by name or number.")] = None,
    method: Annotated[Literal[METHODS], Query(description="How the map is made.")] = "gradient-attention",  # type: ignore[valid-type]
    layer: Annotated[
        int | None, Query(ge=-1000, le=1000, description="The block, for attention and grad-cam; -1 is the last.")
    ] = None,
    render: Annotated[
        Literal["overlay", "map", "patches"],
        Query(description="The map over the image, alone, or as one grey pixel per patch."),
    ] = "overlay",
) -> Response:
    """Return which patches of an image speak for a class, as a PNG file; X-Explanation has its numbers as JSON."""
    options: dict[str, Any] = {"method": method, "render": render}
    if target is not None:
        options["target"] = target
    if layer is not None:
        if method not in _WITH_LAYER:
            raise Problem(422, f"method {method} has no layer: use {' or '.join(_WITH_LAYER)}, or omit it")
        options["layer"] = layer
    served = _service(request).model(model)
    work = {"work": "explain", "options": options}
    _, (frame,) = await _answers(request, served, work, weight=_EXPLAIN_WEIGHT, most=1)
    if isinstance(frame, Problem):
        raise frame
    said = json.dumps(frame[0]["result"])
    return Response(frame[1], media_type="image/png", headers={"X-Explanation": said})


@router.get(
    "/v1/model",
    operation_id="model",
    summary="Describe a model",
    response_model=ModelDocument,
    responses={
        200: {
            "links": {
                name: {"operationId": name, "parameters": {"model": "$response.body#/name"}}
                for name in ("predict", "embed", "explain", "logits")
            }
        },
        **problems(400, 401, 403, 404, 422, 503),
    },
)
async def describe(request: Request, model: ModelName = None) -> Response:
    """Return classes, input, thresholds, engine and limits."""
    service = _service(request)
    served = service.model(model)
    served.check_ready()
    limits = service.settings.limits
    bounds = {name: getattr(limits, name) for name in ("body_bytes", "pixels", "images", "seconds", "queue")}
    methods = METHODS if served.description["classes"] else _WITHOUT_CLASS
    explained = {
        "methods": methods if served.description["maps"] else (),
        "with_layer": [method for method in methods if method in _WITH_LAYER],
        "render": ("overlay", "map", "patches"),
    }
    names = {"name": served.name, "version": served.version, "models": sorted(service.models)}
    return to_json({**names, **served.description, "limits": bounds, "explain": explained})


@router.get(
    "/healthz", operation_id="health", summary="Alive", response_model=Health, responses=problems(400, 403, 422)
)
async def healthz() -> Response:
    """Return 200 while the process answers."""
    return to_json({"status": "ok"})


@router.get(
    "/readyz", operation_id="ready", summary="Ready", response_model=Health, responses=problems(400, 403, 422, 503)
)
async def readyz(request: Request) -> Response:
    """Return 200 if every model has an engine that answers."""
    for served in _service(request).models.values():
        served.check_ready()
    return to_json({"status": "ready"})


@router.get(
    "/metrics",
    operation_id="metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={
        200: {"description": "Metrics.", "content": {"text/plain": {"schema": {"type": "string"}}}},
        **problems(400, 401, 403, 422),
    },
)
async def metrics(request: Request) -> Response:
    """Return all metrics in the text format."""
    return Response(_service(request).exposition(), media_type=CONTENT_TYPE)


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def _vectors(request: Request, model: str | None, work: str, encoding: str) -> Response:
    served = _service(request).model(model)
    uploads, frames = await _answers(request, served, {"work": work})
    found: list[dict[str, Any]] = []
    length = 0
    for upload, frame in zip(uploads, frames, strict=True):
        if isinstance(frame, Problem):
            found.append({"name": upload.name, "error": frame.detail})
            continue
        length = len(frame[1]) // 4
        vector: Any = base64.b64encode(frame[1]).decode() if encoding == "base64" else _floats(frame[1])
        found.append({"name": upload.name, "vector": vector})
    return to_json({"model": served.name, "version": served.version, "length": length, "vectors": found})


def _floats(data: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(data) // 4}f", data))


async def _answers(
    request: Request, served: ServedModel, work: dict[str, Any], weight: int = 1, most: int | None = None
) -> tuple[list[Upload], list[Frame | Problem]]:
    """Read a request's images and return the engine's answers; if none can be read, raise the first problem."""
    service = _service(request)
    limits, deadline = service.settings.limits, time.monotonic() + service.settings.limits.seconds
    served.check_room(weight)  # before the body is read: an overloaded service says so at once
    async with read_uploads(request, limits, service.budget) as uploads:
        if most is not None and len(uploads) > most:
            raise Problem(422, f"{len(uploads)} images: a class map is of one image, send one per request")
        found: list[Frame | Problem | None] = [check_image(upload, limits) for upload in uploads]
        readable = [upload.content for upload, problem in zip(uploads, found, strict=True) if problem is None]
        jobs = served.submit(work, readable, weight) if readable else []
        frames = iter(await _wait(request, served, jobs, deadline) if jobs else [])
        answers = [each if each is not None else next(frames) for each in found]
        names = [Upload(upload.name, b"") for upload in uploads]
    failed = [each for each in answers if isinstance(each, Problem)]
    service.metrics.unreadable.labels(served.name).inc(sum(each.reason == "image" for each in failed))
    if len(failed) == len(answers):
        if failed[0].reason == "image":
            errors = [{"name": each.name, "error": why.detail} for each, why in zip(names, failed, strict=True)]
            failed[0].more["errors"] = errors
        raise failed[0]
    return names, answers


async def _wait(request: Request, served: ServedModel, jobs: list[Job], deadline: float) -> list[Frame | Problem]:
    """Return the answers to jobs, unless the client goes away or the time is over; then the jobs are dropped."""
    answers: asyncio.Future[Any] = asyncio.gather(*(job.answer for job in jobs))
    gone = asyncio.create_task(_gone(request))
    try:
        done, _ = await asyncio.wait(
            [answers, gone], timeout=max(0.1, deadline - time.monotonic()), return_when=asyncio.FIRST_COMPLETED
        )
        if answers in done:
            return [_found(frame) for frame in answers.result()]
        if gone in done:
            raise Problem(499, "the client has gone")
        seconds = f"{request.app.state.service.settings.limits.seconds:g} s"
        raise Problem(503, f"no answer within {seconds}: try again later", retry_after=_RETRY, reason="time")
    finally:
        gone.cancel()
        served.give_up(jobs)
        answers.cancel()


def _found(frame: Frame) -> Frame | Problem:
    message = frame[0]
    if "refused" not in message:
        return frame
    return Problem(message["status"], message["refused"], reason="image" if message["image"] else "")


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
