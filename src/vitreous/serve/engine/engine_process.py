"""The HTTP process's side of an engine process: start it, send it jobs, hear its answers, and notice its end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitreous.serve.engine.effort import Effort
from vitreous.serve.engine.wire import Frame, pack, read_frame
from vitreous.serve.settings import ModelSource

__all__ = ["EngineFailed", "EngineProcess", "Job", "Pace"]

_numbers = itertools.count(1)


class EngineFailed(Exception):  # noqa: N818 - told to the user by whoever started it
    """The process could not load its model; ``code`` is the exit code that the reason stands for."""

    def __init__(self, reason: str, code: int = 1) -> None:
        super().__init__(reason)
        self.reason, self.code = reason, code


@dataclass(slots=True, eq=False)
class Job:
    """One image on its way: what to do with it, and where the answer goes."""

    message: dict[str, Any]  # work, and its options
    content: bytes
    answer: asyncio.Future[Frame]
    weight: int = 1  # in images: a class map takes as long as several
    arrived: float = field(default_factory=time.monotonic)
    tries: int = 0
    id: int = field(default_factory=lambda: next(_numbers))


@dataclass(slots=True)
class Pace:
    """How fast an engine is, in seconds, and how many images it takes at a time."""

    one: float = 0.05
    per_image: float = 0.05
    largest: int = 4


class EngineProcess:
    """A process with one loaded model.

    Args:
        source: The model.
        batch: Images in the largest batch.
        effort: How much time loading may take for a faster engine (:mod:`vitreous.serve.engine.effort`).
        hear: Called with each event, and with the job of each answer.
    """

    def __init__(
        self, source: ModelSource, batch: int, effort: Effort, hear: Callable[[EngineProcess, Frame, Job | None], None]
    ) -> None:
        self.source, self.batch, self.effort = source, batch, effort
        self.jobs: dict[int, Job] = {}  # sent, and not answered
        self.description: dict[str, Any] = {}
        self.can_improve = self.has_converted = False
        self.pace = Pace()
        self.heard = time.monotonic()
        self.started = time.monotonic()
        self._hear = hear
        self._process: asyncio.subprocess.Process | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listening: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """The process id; 0 before it has started."""
        return self._process.pid if self._process is not None else 0

    async def start(self) -> None:
        """Start the process, without waiting for the model to be loaded.

        Raises:
            EngineFailed: If the system starts no process.
        """
        folder = os.fspath(Path(__file__).parents[3])
        path = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
        try:
            self._process = await asyncio.create_subprocess_exec(
                # -P: a file in the current folder must not shadow a module.
                *(sys.executable, "-P", "-m", "vitreous.serve.engine.worker"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=os.environ | {"PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C is for the service alone
            )
        except OSError as error:  # no memory, or too many processes or files
            raise EngineFailed(f"the process does not start: {error.strerror or error}") from error
        config = {"path": self.source.path, "options": dict(self.source.options)}
        self._write(pack(config | {"batch": self.batch, "effort": self.effort}))
        self._listening = asyncio.create_task(self._listen())

    async def ready(self) -> None:
        """Wait until the model is loaded.

        Raises:
            EngineFailed: If it cannot be, or the process ends.
        """
        await asyncio.shield(self._ready)

    async def ended(self) -> int:
        """Wait for the end of the process; return its code."""
        assert self._process is not None
        assert self._listening is not None
        await asyncio.shield(self._listening)
        return await self._process.wait()

    def send(self, job: Job) -> None:
        """Send a job."""
        self.jobs[job.id] = job
        self.heard = max(self.heard, time.monotonic()) if len(self.jobs) == 1 else self.heard
        self._write(pack(job.message | {"id": job.id}, job.content))

    def drop(self, job: Job) -> None:
        """Say that nobody waits for a job any more."""
        self._write(pack({"work": "drop", "id": job.id}))

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def stop(self) -> None:
        """End the process and wait for it; it has nothing to save."""
        if self._process is not None:
            self.kill()
            await self.ended()

    def _write(self, frame: bytes) -> None:
        if self._process is not None and self._process.stdin is not None and not self._process.stdin.is_closing():
            with contextlib.suppress(ConnectionError, RuntimeError):  # its end is noticed by the listener
                self._process.stdin.write(frame)

    async def _listen(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while (frame := await read_frame(self._process.stdout)) is not None:
            self.heard = time.monotonic()
            message = frame[0]
            self._note_pace(message)
            if message.get("event") == "ready":
                self.description, self.can_improve = message["model"], message["can_improve"]
                self.has_converted = message["has_converted"]
                self._ready.set_result(None)
            elif message.get("event") == "failed":
                self._fail(EngineFailed(message["reason"], message["code"]))
            self._hear(self, frame, self.jobs.pop(message.get("id", 0), None))
        code = await self._process.wait()
        self._fail(EngineFailed(f"the engine process ended with code {code} before the model was loaded"))

    def _note_pace(self, message: dict[str, Any]) -> None:
        if "per_image" in message:
            self.pace = Pace(message["one"], message["per_image"], message["largest"])

    def _fail(self, reason: EngineFailed) -> None:
        if not self._ready.done():
            self._ready.set_exception(reason)
            self._ready.exception()  # noted: whoever waits gets it, and nobody may wait
