"""A client of `vitreous serve` with the interface of a loaded model: `vitreous.Client("http://127.0.0.1:8000")`.

It needs the standard library alone; arrays and images in memory need NumPy and Pillow. Images are sent several at a
time; what the service refuses for the moment (429 and 503) is sent again after its Retry-After. Shapes: F features,
K classes, N images.
"""

from __future__ import annotations

import base64
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any

from vitreous.client.exchange import Exchange, UnreadableError
from vitreous.client.images import chunks, one_or_all, to_bytes
from vitreous.errors import ConfigError, UsageError
from vitreous.predictions import Embedding, Failure, Prediction

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["Client"]

_AT_ONCE = 2  # requests on their way at a time: one is computed while the next is read
_CHUNK = 16  # images in a request


class Client:
    """A model behind a service.

    Args:
        url: The service's address, such as ``http://127.0.0.1:8000``.
        model: Its name there; needed only if the service has several.
        key: The API key, if the service needs one.
        timeout: Seconds to wait for an answer.
        patience: Seconds for which a request is repeated while the service is busy or away.

    Raises:
        UsageError: If the address is not that of an HTTP service.
    """

    def __init__(
        self, url: str, model: str | None = None, *, key: str | None = None, timeout: float = 60, patience: float = 60
    ) -> None:
        self.url, self.model = url, model
        self._exchange = Exchange(url, key, timeout, patience)

    def __repr__(self) -> str:
        return f"Client({self.url!r}, {len(self.classes)} classes)"

    @cached_property
    def info(self) -> Mapping[str, Any]:
        """What the service says of the model: classes, pipeline, thresholds, engine, limits."""
        answer: dict[str, Any] = json.loads(self._request("GET", "/v1/model", {}))
        return answer

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of the logits."""
        return tuple(self.info["classes"])

    @property
    def features(self) -> int:
        """Length F of an embedding."""
        return int(self.info["features"])

    @property
    def pipeline(self) -> Mapping[str, Any]:
        """The preprocessing that the service applies, as JSON types."""
        found: Mapping[str, Any] = self.info["pipeline"]
        return found

    def predict(self, x: Any, top_k: int = 5, batch_size: int = 32) -> Any:
        """Classify one image, or several, as :meth:`vitreous.Classifier.predict`.

        Args:
            x: A path, the bytes of an image file, a binary file object, a PIL image, an array (H, W) or (H, W, C), or a
                tensor (C, H, W); or several of these.
            top_k: Length of ``Prediction.top``.
            batch_size: Images in a request, at most 16.

        Raises:
            DataError: If an image cannot be read.
            ServiceError: If the service does not answer.
        """
        return one_or_all(x, lambda items: self.predict_stream(items, top_k, batch_size))

    def predict_stream(
        self, items: Iterable[Any], top_k: int = 5, batch_size: int = 32
    ) -> Iterator[Prediction | Failure]:
        """Yield a :class:`Prediction` or a :class:`Failure` for each image, in order."""
        _check_positive(top_k=top_k, batch_size=batch_size)
        query = {"top_k": str(min(top_k, 1000))}
        for name, record in self._stream(items, batch_size, "/v1/predict", query, "predictions"):
            if "error" in record:
                yield Failure(name, record["error"])
                continue
            top = tuple((each["label"], each["probability"]) for each in record["top"])
            held = tuple(record["set"]) if "set" in record else None
            yield Prediction(
                *top[0],
                top=top,
                name=name,
                unsure=record.get("unsure"),
                set=held,
                set_coverage=record.get("set_coverage"),
                labels=tuple(record["labels"]) if "labels" in record else None,
            )

    def embed(self, x: Any, batch_size: int = 32) -> npt.NDArray[np.float32]:
        """Return the input of the head's last layer: (F,) for one image, (N, F) for several."""
        return self._stacked(x, lambda items: self.embed_stream(items, batch_size), self.features)

    def embed_stream(self, items: Iterable[Any], batch_size: int = 32) -> Iterator[Embedding | Failure]:
        """Yield an :class:`Embedding` or a :class:`Failure` for each image, in order."""
        yield from self._vectors(items, batch_size, "/v1/embed")

    def logits(self, x: Any, batch_size: int = 32) -> npt.NDArray[np.float32]:
        """Return the outputs before temperature and softmax: (K,) for one image, (N, K) for several."""
        rows = lambda items: self._vectors(items, batch_size, "/v1/logits")  # noqa: E731
        return self._stacked(x, rows, len(self.classes))

    def logits_stream(self, items: Iterable[Any], batch_size: int = 32) -> Iterator[npt.NDArray[np.float32] | Failure]:
        """Yield the logits (K,) or a :class:`Failure` for each image, in order."""
        for found in self._vectors(items, batch_size, "/v1/logits"):
            yield found if isinstance(found, Failure) else found.vector

    def explain(self, image: Any, target: str | int | None = None, **options: Any) -> bytes:
        """Return a class map as the bytes of a PNG file.

        Args:
            image: One image.
            target: The class, by name or number; None is the predicted one.
            options: ``method``, ``layer`` and ``render``, as `POST /v1/explain` has them.

        Raises:
            DataError: If the image cannot be read.
            UsageError: If the class, or an option, does not fit.
        """
        given = {"target": self._class_word(target), **options}
        query = {name: str(value) for name, value in given.items() if value is not None}
        return self._request("POST", "/v1/explain", query, to_bytes(image), "application/octet-stream")

    def close(self) -> None:
        """Close the connections to the service; the client can still be used."""
        self._exchange.close()

    def _class_word(self, target: str | int | None) -> str | None:
        """Return a class as the service takes it: a number only if no class has that number for its name."""
        if target is None or isinstance(target, str) or not (classes := self.classes):
            return target if target is None else str(target)
        if isinstance(target, bool) or not hasattr(target, "__index__") or not 0 <= int(target) < len(classes):
            raise UsageError(f"target is {target!r}, it must be a class name or a number from 0 to {len(classes) - 1}")
        return classes[int(target)] if str(int(target)) in classes else str(int(target))

    def _request(self, method: str, path: str, query: Mapping[str, str], body: bytes = b"", kind: str = "") -> bytes:
        words = dict(query) | ({"model": self.model} if self.model is not None else {})
        return self._exchange.request(method, path, words, body, kind)

    def _vectors(self, items: Iterable[Any], batch_size: int, path: str) -> Iterator[Embedding | Failure]:
        import numpy as np

        _check_positive(batch_size=batch_size)
        for name, record in self._stream(items, batch_size, path, {"encoding": "base64"}, "vectors"):
            if "error" in record:
                yield Failure(name, record["error"])
            else:
                yield Embedding(np.frombuffer(base64.b64decode(record["vector"]), dtype="<f4").copy(), name)

    def _stacked(self, x: Any, stream: Callable[[Iterable[Any]], Iterator[Any]], length: int) -> Any:
        import numpy as np

        found = one_or_all(x, stream)
        if isinstance(found, Embedding):
            return found.vector
        return np.stack([each.vector for each in found]) if found else np.zeros((0, length), np.float32)

    def _stream(
        self, items: Iterable[Any], batch_size: int, path: str, query: Mapping[str, str], field: str
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield name and record of each image in order; a few requests are on their way at a time."""
        most = min(batch_size, _CHUNK, int(self.info["limits"]["images"]))
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="vitreous-client") as pool:
            pending: deque[Future[list[tuple[str, dict[str, Any]]]]] = deque()
            for chunk in chunks(items, most):
                pending.append(pool.submit(self._send, chunk, path, query, field))
                if len(pending) > _AT_ONCE:
                    yield from pending.popleft().result()
            while pending:
                yield from pending.popleft().result()

    def _send(
        self, chunk: list[tuple[str, bytes | Failure]], path: str, query: Mapping[str, str], field: str
    ) -> list[tuple[str, dict[str, Any]]]:
        """Send the readable images of a chunk; return a record for each image."""
        sent = [content for _, content in chunk if isinstance(content, bytes)]
        records = iter(self._records(sent, path, query, field)) if sent else iter(())
        return [
            (name, {"error": content.reason} if isinstance(content, Failure) else next(records))
            for name, content in chunk
        ]

    def _records(self, images: list[bytes], path: str, query: Mapping[str, str], field: str) -> list[dict[str, Any]]:
        try:
            if len(images) == 1:
                body, kind = images[0], "application/octet-stream"
            else:
                encoded = [base64.b64encode(each).decode("ascii") for each in images]
                body, kind = json.dumps({"images": encoded}).encode("ascii"), "application/json"
            found: list[dict[str, Any]] = json.loads(self._request("POST", path, query, body, kind))[field]
            return found
        except UnreadableError as refused:
            if len(images) > 1 and not refused.errors:  # the request as a whole is too large
                middle = len(images) // 2
                return [
                    record
                    for part in (images[:middle], images[middle:])
                    for record in self._records(part, path, query, field)
                ]
            return refused.errors or [{"error": str(refused)}]


def _check_positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise ConfigError(f"{name} is {value}, it must be at least 1")
