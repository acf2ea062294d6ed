"""Forms batches in an engine process: threads decode images as they arrive, and one thread computes what is decoded.

A batch is whatever waits when the engine becomes free: no timer delays an image, and batches grow with the load. Their
size is limited so that a batch takes at most a few times the time of one image, since a new request waits for it.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, Any

from vitreous.errors import VitreousError, first_line
from vitreous.serve.engine.computing import Computing, Refused
from vitreous.serve.engine.wire import pack, receive

__all__ = ["Batcher"]

_TIMES_OF_ONE = 4.0  # time of the largest batch, in times of a single image
_SHORTEST = 0.005  # seconds that a single image counts at least: what a request costs besides the engine
_FORGETTING = 0.2  # weight of the newest batch in the time per image
_DECODERS = 4


@dataclass(slots=True)
class _Job:
    id: int
    message: dict[str, Any]
    content: bytes
    decoded: Any = None
    dropped: bool = False


class Batcher:
    """Answers the frames of a stream on another, until the first one ends.

    Args:
        computing: The model.
        send: Writes a frame; called from several threads, one at a time.
        limit: Images in the largest batch.
    """

    def __init__(self, computing: Computing, send: Callable[[bytes], None], limit: int) -> None:
        self.computing, self.limit = computing, limit
        self._send, self._sending = send, threading.Lock()
        self._jobs: dict[int, _Job] = {}
        self._ready: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._pool = ThreadPoolExecutor(max(1, min(_DECODERS, os.cpu_count() or 1)), "decoder")
        self.seconds_per_image = computing.seconds

    @property
    def largest(self) -> int:
        """How many images a batch may have now."""
        one = max(self.computing.seconds, _SHORTEST)
        return max(1, min(self.limit, round(_TIMES_OF_ONE * one / max(self.seconds_per_image, 1e-6))))

    def send(self, message: dict[str, Any], payload: bytes = b"") -> None:
        """Write a frame."""
        with self._sending:
            self._send(pack(message, payload))

    def read(self, stream: IO[bytes]) -> None:
        """Take requests from a stream until it ends; for a thread of its own."""
        while (frame := receive(stream)) is not None:
            message, content = frame
            if message["work"] == "drop":
                self._drop(message["id"])
                continue
            job = _Job(message["id"], message, content)
            with self._changed:
                self._jobs[job.id] = job
            if job.message["work"] == "explain":
                self._is_ready(job)
            else:
                self._pool.submit(self._decode, job)
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def run(self) -> None:
        """Compute until the stream of requests has ended."""
        while batch := self._next():
            start = time.perf_counter()
            answers = self._computed(batch)
            seconds = time.perf_counter() - start
            if batch[0].message["work"] != "explain":
                self._learn(len(batch), seconds)
            size = {"size": len(batch), "seconds": seconds, "work": batch[0].message["work"]}
            pace = {"one": self.computing.seconds, "per_image": self.seconds_per_image, "largest": self.largest}
            self.send({"event": "batch", **size, **pace})
            for job, answer in zip(batch, answers, strict=True):
                self._answer(job, answer)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _decode(self, job: _Job) -> None:
        try:
            if not job.dropped:
                job.decoded, job.content = self.computing.decode(job.content), b""
        except Refused as reason:
            self._answer(job, reason)
            return
        except Exception as error:  # a decoder's surprise must not leave a request without an answer
            self._answer(job, _failure(error))
            return
        self._is_ready(job)

    def _is_ready(self, job: _Job) -> None:
        with self._changed:
            self._ready.append(job)
            self._changed.notify_all()

    def _drop(self, number: int) -> None:
        """Forget a job whose client has gone; one that is being computed is answered all the same."""
        with self._changed:
            if (job := self._jobs.get(number)) is not None:
                job.dropped, job.content = True, b""

    def _next(self) -> list[_Job]:
        """Wait for the next batch, of jobs of one kind; empty once the stream has ended."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ready or self._closed)
                if self._closed:
                    return []
                first, rest = self._ready.popleft(), deque[_Job]()
                batch, dropped = ([], [first]) if first.dropped else ([first], [])
                limit = 1 if first.message["work"] == "explain" else self.largest
                while self._ready and batch and len(batch) < limit:
                    job = self._ready.popleft()
                    if job.dropped:
                        dropped.append(job)
                    else:
                        (batch if job.message["work"] == first.message["work"] else rest).append(job)
                self._ready.extendleft(reversed(rest))
            for job in dropped:
                self._answer(job, Refused("the client has gone", 499))
            if batch:
                return batch

    def _computed(self, batch: list[_Job]) -> list[Any]:
        first = batch[0].message
        try:
            if first["work"] == "explain":
                return [self.computing.explain(batch[0].content, first["options"])]
            top_k = max(job.message.get("top_k", 1) for job in batch)
            return self.computing.compute(first["work"], [job.decoded for job in batch], top_k)
        except Refused as reason:
            return [reason] * len(batch)
        except Exception as error:  # the process must go on: other requests wait for it
            return [_failure(error)] * len(batch)

    def _learn(self, size: int, seconds: float) -> None:
        """Adjust the time per image, which limits batches, and the time of one image."""
        if size == 1:
            self.computing.seconds += _FORGETTING * (min(seconds, 2 * self.computing.seconds) - self.computing.seconds)
        if size >= self.largest // 2:
            self.seconds_per_image += _FORGETTING * (seconds / size - self.seconds_per_image)

    def _answer(self, job: _Job, answer: Any) -> None:
        with self._changed:
            self._jobs.pop(job.id, None)
        if isinstance(answer, Refused):
            self.send({"id": job.id, "refused": answer.reason, "status": answer.status, "image": answer.about_image})
            return
        result, payload = answer
        if "top" in result:
            result = result | {"top": result["top"][: job.message["top_k"]]}
        self.send({"id": job.id, "result": result}, payload)


def _failure(error: Exception) -> Refused:
    text = str(error) if isinstance(error, VitreousError) else f"{type(error).__name__}: {first_line(error)}"
    return Refused(text, 500)
