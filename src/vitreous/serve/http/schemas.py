"""The documents of the service, for its OpenAPI description, with examples."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from vitreous.serve.problems import MEDIA_TYPE

__all__ = [
    "Embeddings",
    "Health",
    "ModelDocument",
    "OnePrediction",
    "OneVector",
    "Predictions",
    "ProblemDocument",
    "Ranked",
    "image_body",
    "problems",
]

# A valid PNG of one grey pixel, for examples.
_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg=="
_ANSWER: dict[str, Any] = {"label": "tulip", "probability": 0.93}
_TOP = [_ANSWER, {"label": "rose", "probability": 0.05}]

_EXAMPLE: dict[str, Any] = {
    "model": "flowers",
    "version": "6ac1f0a1d0c2",
    "predictions": [{"name": "a.jpg", **_ANSWER, "top": _TOP, "unsure": False}],
}


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Ranked(_Document):
    """A class and its probability, calibrated if the model has a temperature."""

    label: str
    probability: float = Field(ge=0, le=1)


class OnePrediction(_Document):
    """What the model says of one image; or why the image cannot be read."""

    name: str = Field(description="The image's name in the request, or its position such as #0.")
    label: str | None = None
    probability: float | None = Field(None, ge=0, le=1)
    top: list[Ranked] | None = Field(None, description="The most probable classes, in descending order.")
    unsure: bool | None = Field(None, description="Below the model's threshold; absent without one.")
    set: list[str] | None = Field(None, description="Classes that hold the true one with the chance set_coverage.")
    set_coverage: float | None = None
    labels: list[str] | None = Field(
        None, description="The labels of an image that may have several, by the thresholds of the model; else absent."
    )
    error: str | None = Field(None, description="Why the image cannot be read; then nothing else is here.")


class Predictions(_Document):
    """Predictions in the order of the images."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [_EXAMPLE]})

    model: str
    version: str
    predictions: list[OnePrediction]


class OneVector(_Document):
    """A vector of one image; or why the image cannot be read."""

    name: str
    vector: list[float] | str | None = Field(None, description="Numbers; with encoding=base64 float32, little-endian.")
    error: str | None = None


class Embeddings(_Document):
    """Vectors in the order of the images."""

    model: str
    version: str
    length: int
    vectors: list[OneVector]


class ModelDocument(BaseModel):
    """A model: its classes, its input, its thresholds and what computes it."""

    name: str
    version: str
    models: list[str] = Field(description="The names of all models of this service.")
    classes: list[str]
    features: int
    pipeline: dict[str, Any]
    temperature: float
    abstention: dict[str, Any] | None
    conformal: dict[str, Any] | None
    multilabel: dict[str, Any] | None
    scores: dict[str, Any]
    license: Any
    maps: bool = Field(description="Whether POST /v1/explain works: an exported graph has no maps.")
    blocks: int = Field(description="Blocks whose attention POST /v1/explain can show; 0 without maps.")
    engine: str
    precision: str
    device: str
    limits: dict[str, float]
    explain: dict[str, Any]


class Health(_Document):
    """Whether the service lives, or is ready."""

    status: Literal["ok", "ready"]


class ProblemDocument(BaseModel):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str = Field(description="The value, the limit and the remedy.")


_REASONS = {
    400: "The request is malformed, or its Host header names another service.",
    401: "The service needs an API key.",
    403: "The request comes from a page of another origin.",
    404: "There is no such model.",
    408: "The body took too long to arrive.",
    413: "A limit is exceeded: bytes, pixels or images.",
    415: "The body, or what it holds, is no supported image.",
    422: "An image cannot be read, or a parameter does not fit.",
    429: "Too many images wait: Retry-After says when to come back.",
    500: "The model cannot compute this.",
    503: "The engine is starting, or memory is short: Retry-After says when to come back.",
}
_WITH_DELAY = {429, 503}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the description of errors, for FastAPI."""
    schema = {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}
    described: dict[int | str, dict[str, Any]] = {}
    for status in statuses:
        described[status] = {"description": _REASONS[status], "content": {MEDIA_TYPE: schema}}
        if status in _WITH_DELAY:
            delay = {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}
            described[status]["headers"] = {"Retry-After": delay}
    return described


def image_body(several: bool = True) -> dict[str, Any]:
    """Return the description of a body with images."""
    binary = {"schema": {"type": "string", "format": "binary", "contentMediaType": "image/jpeg"}}
    encoded = {"type": "string", "contentEncoding": "base64", "description": "An image file, as base64."}
    named = {
        "type": "object",
        "required": ["data"],
        "properties": {"name": {"type": "string", "maxLength": 255}, "data": encoded},
        "additionalProperties": False,
    }
    count = {"minItems": 1} | ({} if several else {"maxItems": 1})
    document = {
        "type": "object",
        "required": ["images"],
        "properties": {"images": {"type": "array", "items": {"anyOf": [encoded, named]}, **count}},
        "additionalProperties": False,
    }
    form = {
        "type": "object",
        "required": ["image"],
        "properties": {"image": {"type": "array", "items": {"type": "string", "format": "binary"}, **count}},
        "additionalProperties": False,
    }
    examples = {"one": {"summary": "one image", "value": {"images": [_PIXEL]}}}
    examples["named"] = {"summary": "with a name", "value": {"images": [{"name": "pixel.png", "data": _PIXEL}]}}
    return {
        "requestBody": {
            "required": True,
            "description": "One image as it is, or one or several as a form or as JSON.",
            "content": {
                "application/octet-stream": binary,
                "image/jpeg": binary,
                "image/png": binary,
                "multipart/form-data": {"schema": form},
                "application/json": {"schema": document, "examples": examples},
            },
        }
    }
