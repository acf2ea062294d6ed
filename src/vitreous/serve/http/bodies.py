"""From a request's body to the bytes of its images: raw, multipart or JSON, within the limits.

URLs are never fetched, and nothing is decoded here: a header is read to refuse what is no image, or too large.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from vitreous.data.images.formats import detect_format
from vitreous.data.images.headers import UnreadableError, read_header
from vitreous.serve.problems import Problem
from vitreous.serve.settings import Limits

__all__ = ["BodyBudget", "Upload", "check_image", "read_uploads"]

_LARGE = 1 << 20  # bytes of a JSON body that a thread parses
_BUSY = 2  # seconds that a client is asked to wait when the bodies of others take all memory
_NAME = 255  # characters of an image's name


@dataclass(frozen=True, slots=True)
class Upload:
    """An image of a request: its name in the answer, and its file's bytes."""

    name: str
    content: bytes


class BodyBudget:
    """The memory that the bodies of all requests may hold together, in bytes."""

    def __init__(self, total: int) -> None:
        self.total, self.held = total, 0

    def reserve(self, size: int) -> None:
        """Take a share; raise 503 if there is none."""
        if self.held + size > self.total:
            detail = f"other requests hold {self.held:,} of {self.total:,} bytes: try again"
            raise Problem(503, detail, retry_after=_BUSY, reason="memory")
        self.held += size

    def release(self, size: int) -> None:
        """Give a share back."""
        self.held -= size


@contextlib.asynccontextmanager
async def read_uploads(request: Request, limits: Limits, budget: BodyBudget) -> AsyncIterator[list[Upload]]:
    """Read a request's images; their memory is counted until the block ends.

    Raises:
        Problem: 408, 413, 415, 422 or 503.
        ClientDisconnect: If the client has gone.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_raw = not kind or kind == "application/octet-stream" or kind.startswith("image/")
    if not is_raw and kind not in ("multipart/form-data", "application/json"):
        raise Problem(
            415,
            f"the body is '{kind}': send an image as image/jpeg or another image type, several as multipart/form-data, "
            "or application/json with base64",
            reason="media_type",
        )
    reserved = [0]
    try:
        body = await _read(request, limits, budget, reserved)
        if not body:
            raise Problem(422, "the body is empty: send the bytes of an image file")
        if is_raw:
            uploads = [Upload("#0", body)]
        elif kind == "application/json":
            parse = asyncio.to_thread if len(body) > _LARGE else _at_once
            uploads = await parse(_parse_json, body)
        else:
            uploads = await _parse_multipart(request.headers, body, limits)
        if not uploads:
            raise Problem(422, "there is no image in the request: send at least one")
        if len(uploads) > limits.images:
            detail = f"{len(uploads):,} images, the limit of a request is {limits.images}: send several requests"
            raise Problem(413, detail, reason="images")
        yield uploads
    finally:
        budget.release(reserved[0])


def check_image(upload: Upload, limits: Limits) -> Problem | None:
    """Return why an image is refused before it is decoded, or None."""
    content = upload.content
    if content and not detect_format(content[:64]):
        status = 415
    elif len(content) > limits.body_bytes:
        detail = f"{len(content):,} bytes, the limit is {limits.body_bytes:,}: save it smaller"
        return Problem(413, detail, reason="image")
    else:
        status = 422
    try:
        header = read_header(content)
    except UnreadableError as error:
        text = str(error)
        return Problem(413 if status == 422 and "the limit" in text else status, text, reason="image")
    if header.pixels > limits.pixels:
        detail = f"{header.pixels:,} pixels, the limit is {limits.pixels:,}: save it smaller"
        return Problem(413, detail, reason="image")
    return None


async def _at_once(parse: Any, body: bytes) -> list[Upload]:
    return parse(body)


async def _read(request: Request, limits: Limits, budget: BodyBudget, reserved: list[int]) -> bytes:
    """Read the body; `reserved` has what is reserved of the budget, also if this raises."""
    declared = request.headers.get("content-length", "")
    expected = int(declared) if declared.isdecimal() and len(declared) < 20 else 0
    too_large = Problem(
        413, f"the body has more than {limits.body_bytes:,} bytes, which is the limit: send less", reason="body"
    )
    if expected > limits.body_bytes:
        raise too_large
    budget.reserve(expected)
    reserved[0] += expected
    chunks, size = [], 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limits.body_bytes:
                    raise too_large
                if size > reserved[0]:
                    budget.reserve(size - reserved[0])
                    reserved[0] = size
                chunks.append(chunk)
    except TimeoutError:
        detail = f"the body took more than {limits.body_seconds:g} s to arrive: send it faster, or a smaller image"
        raise Problem(408, detail, reason="slow", headers={"Connection": "close"}) from None
    return b"".join(chunks)


def _parse_json(body: bytes) -> list[Upload]:
    """Parse `{"images": [...]}`, each base64, or an object with `data` and an optional `name`."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Problem(422, f"the body is not valid JSON: {str(error)[:100]}") from None
    if not isinstance(document, dict) or not isinstance(document.get("images"), list):
        raise Problem(422, 'the JSON has no list of images: send {"images": ["<base64>", ...]}')
    if unknown := sorted(document.keys() - {"images"}):
        raise Problem(422, f"the JSON has unknown members, such as '{unknown[0]:.60}': send images only")
    return [_from_json(position, item) for position, item in enumerate(document["images"])]


def _from_json(position: int, item: Any) -> Upload:
    name = f"#{position}"
    if isinstance(item, dict):
        if not isinstance(given := item.get("name", name), str):
            raise Problem(422, f"images[{position}].name is not a string")
        name, item = _safe_name(given), item.get("data")
    if not isinstance(item, str):
        raise Problem(422, f"images[{position}] is not base64: send a string, or an object with data and name")
    try:
        return Upload(name, base64.b64decode(item, validate=True))
    except (binascii.Error, ValueError):
        remedy = "URLs are not fetched, and a data: URL must be cut after its comma"
        raise Problem(422, f"images[{position}] is not base64: {remedy}") from None


async def _parse_multipart(headers: Headers, body: bytes, limits: Limits) -> list[Upload]:
    """Parse the files of a form; other fields are refused."""

    async def stream() -> AsyncGenerator[bytes]:
        yield body

    parser = MultiPartParser(headers, stream(), max_files=limits.images, max_fields=8, max_part_size=1024)
    parser.spool_max_size = limits.body_bytes  # the body is in memory already: nothing is written to disk
    try:
        form = await parser.parse()
    except MultiPartException as error:
        many = "Too many files" in error.message
        detail = f"more than {limits.images} images in a request: send several" if many else error.message
        raise Problem(413 if many else 422, detail, reason="images" if many else "") from None
    except (LookupError, ValueError, AssertionError) as error:  # no boundary, or an invalid charset
        raise Problem(422, f"the form cannot be read: {type(error).__name__}; is there a boundary?") from None
    uploads: list[Upload] = []
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(form.close)
        for field, value in form.multi_items():
            if not isinstance(value, UploadFile):
                raise Problem(422, f"the field '{field[:60]}' of the form is no file: send images as files")
            uploads.append(Upload(_safe_name(value.filename or f"#{len(uploads)}"), await value.read()))
    return uploads


def _safe_name(text: str) -> str:
    """Return a name as valid Unicode: JSON can hold half a surrogate pair, an answer cannot."""
    return text[:_NAME].encode("utf-8", "backslashreplace").decode("utf-8")
