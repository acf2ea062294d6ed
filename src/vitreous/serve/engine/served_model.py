"""One model of a service: its bounded queue, and the engine process that answers, restarted or replaced when needed.

A new process takes over only once it is ready: after a crash, when the model file has changed, and when a faster engine
is prepared. Jobs of a process that died are sent once more; after a second time their requests get 503.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import deque
from collections.abc import Coroutine
from typing import Any

from vitreous.serve.engine.admission import Admission
from vitreous.serve.engine.effort import AT_ONCE, CONVERT, STORED, Effort
from vitreous.serve.engine.engine_process import EngineFailed, EngineProcess, Job, Pace
from vitreous.serve.engine.model_stamp import model_stamp
from vitreous.serve.engine.wire import Frame
from vitreous.serve.metrics import Metrics
from vitreous.serve.problems import Problem
from vitreous.serve.settings import Limits, ModelSource

__all__ = ["ServedModel"]

logger = logging.getLogger("vitreous.serve")

_TRIES = 2  # engine processes that a job may meet
_LONGEST_PAUSE = 30.0  # seconds between attempts to start an engine
_STABLE = 10.0  # seconds after which a process that dies does not count as failing again and again
_LOOKING = 1.0  # seconds between looks at the model file and at the engine
_RESTART = 5  # seconds that a client is asked to wait while an engine starts


class ServedModel:
    """A model that answers jobs.

    Args:
        source: The model.
        limits: The limits of the service.
        metrics: Where work is counted.
        reload: Whether a changed file is loaded.
    """

    def __init__(self, source: ModelSource, limits: Limits, metrics: Metrics, reload: bool = True) -> None:
        self.source, self.limits, self.metrics = source, limits, metrics
        self.admission = Admission(limits.queue)
        self.description: dict[str, Any] = {}
        self.version = ""
        self._reload = reload
        self._queue: deque[Job] = deque()
        self._engine: EngineProcess | None = None  # the one that answers
        self._others: set[EngineProcess] = set()  # starting, or finishing their last jobs
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopping = False
        self._stamp = model_stamp(source.path)

    @property
    def name(self) -> str:
        """The name that requests use."""
        return self.source.name

    @property
    def is_ready(self) -> bool:
        """Whether an engine answers."""
        return self._engine is not None

    @property
    def pace(self) -> Pace:
        """How fast the engine is."""
        return self._engine.pace if self._engine is not None else Pace()

    async def start(self) -> None:
        """Start the first engine process and return; :meth:`first_ready` waits for it."""
        self._first = await self._launch(AT_ONCE)

    async def first_ready(self) -> None:
        """Wait until the model answers.

        Raises:
            EngineFailed: If it cannot be loaded.
        """
        await self._first.ready()
        self._take_over(self._first)
        self._spawn(self._look_after())

    def submit(self, work: dict[str, Any], contents: list[bytes], weight: int = 1) -> list[Job]:
        """Accept a request's images.

        Raises:
            Problem: 503 if no engine is ready, 429 if too many images wait.
        """
        self.check_room(len(contents) * weight)
        loop = asyncio.get_running_loop()
        jobs = [Job(dict(work), content, loop.create_future(), weight) for content in contents]
        self.admission.enter(len(jobs) * weight)
        for job in jobs:
            job.answer.add_done_callback(lambda _: self.admission.leave(weight))
        self._queue.extend(jobs)
        self._pump()
        return jobs

    def check_ready(self) -> None:
        """Raise 503 if no engine answers."""
        if self._engine is None or self._stopping:
            detail = f"the engine of model {self.name} is starting: try again"
            raise Problem(503, detail, retry_after=_RESTART, reason="engine")

    def check_room(self, images: int = 1) -> None:
        """Raise the problem that :meth:`submit` would raise."""
        self.check_ready()
        if not self.admission.takes(images, self.pace):
            raise Problem(
                429,
                f"{self.admission.images} images of model {self.name} wait, which is the limit now: try again later",
                retry_after=self.admission.retry_after(self.pace),
                reason="queue",
            )

    def give_up(self, jobs: list[Job]) -> None:
        """Forget jobs whose client has gone or whose time is over."""
        open_jobs = [job for job in jobs if not job.answer.done()]
        for job in open_jobs:
            job.answer.cancel()
            job.content = b""
            for engine in (self._engine, *self._others):
                if engine is not None and job.id in engine.jobs:
                    engine.drop(job)
        if open_jobs:
            self._queue = deque(job for job in self._queue if not job.answer.done())

    async def stop(self) -> None:
        """End all processes; jobs without an answer get 503."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        engines = [engine for engine in (self._engine, *self._others) if engine is not None]
        self._engine = None
        await asyncio.gather(*(engine.stop() for engine in engines), return_exceptions=True)
        for job in self._queue:
            self._fail(job, "the service ends")

    async def _launch(self, effort: Effort) -> EngineProcess:
        engine = EngineProcess(self.source, self.limits.batch, effort, self._hear)
        await engine.start()
        self._others.add(engine)
        self._spawn(self._await_end(engine))
        return engine

    def _take_over(self, engine: EngineProcess) -> None:
        """Let a process that is ready answer from now on; the one before finishes its jobs and ends."""
        before, self._engine = self._engine, engine
        self._others.discard(engine)
        self.description = engine.description
        self.version = _digest(engine.description, self._stamp)
        self.metrics.model_loaded(self.name, engine.description)
        if before is not None:
            self._others.add(before)
            self._spawn(self._retire(before))
        self._pump()

    async def _retire(self, engine: EngineProcess) -> None:
        while engine.jobs:
            await asyncio.sleep(0.05)
        await engine.stop()

    async def _await_end(self, engine: EngineProcess) -> None:
        code = await engine.ended()
        self._others.discard(engine)
        lost = [job for job in engine.jobs.values() if not job.answer.done()]
        engine.jobs.clear()
        for job in reversed(lost):
            if job.tries < _TRIES and not self._stopping:
                self._queue.appendleft(job)
            else:
                self._fail(job, "the engine ended while it computed this image")
        if self._engine is not engine or self._stopping:
            self._pump()  # the engine that answers takes over what is left
            return
        self._engine = None
        self.metrics.engine_restarts.labels(self.name).inc()
        logger.warning("the engine of model %s ended with code %s: starting another", self.name, code)
        await self._restart(time.monotonic() - engine.started < _STABLE)

    async def _restart(self, was_short: bool) -> None:
        pause = 1.0 if was_short else 0.0
        while not self._stopping:
            await asyncio.sleep(pause)
            try:
                engine = await self._launch(STORED)
                await engine.ready()
            except EngineFailed as failed:
                logger.error("the engine of model %s does not start: %s", self.name, failed.reason)
                pause = min(_LONGEST_PAUSE, 2 * pause + 1)
                continue
            self._take_over(engine)
            return

    async def _look_after(self) -> None:
        """Open a faster engine once for each version, and look at the model file and at the engine's health."""
        await self._improve()
        seen = self._stamp
        while True:
            await asyncio.sleep(_LOOKING)
            now = time.monotonic()
            for engine in (self._engine, *self._others):
                if engine is not None and engine.jobs and now - engine.heard > self.limits.seconds + 10:
                    logger.error("the engine of model %s does not answer: it is ended", self.name)
                    engine.kill()
            stamp = model_stamp(self.source.path) if self._reload else self._stamp
            if stamp != self._stamp and stamp == seen and stamp:  # changed, and no longer changing
                self._stamp = stamp
                if await self._replace(STORED, why="the changed file"):
                    await self._improve()
            seen = stamp

    async def _improve(self) -> None:
        if self._engine is not None and self._engine.can_improve:
            await self._replace(CONVERT, why="a faster engine")

    async def _replace(self, effort: Effort, why: str) -> bool:
        """Start another process beside the one that answers; return whether it took over, as it is ready and better."""
        try:
            engine = await self._launch(effort)
            await engine.ready()
            if effort == CONVERT and engine.description["engine"] == "torch":
                await engine.stop()
                logger.info("model %s stays with torch: nothing is faster here", self.name)
                return False
            if engine.has_converted:
                await engine.stop()  # a conversion leaves much memory behind
                engine = await self._launch(STORED)
                await engine.ready()
        except EngineFailed as failed:
            logger.error("model %s goes on as it is, %s does not load: %s", self.name, why, failed.reason)
            self.metrics.reloads.labels(self.name, "failed").inc()
            return False
        self._take_over(engine)
        self.metrics.reloads.labels(self.name, "improved" if effort == CONVERT else "loaded").inc()
        logger.info("model %s: %s answers, computed by %s", self.name, why, engine.description["engine"])
        return True

    def _pump(self) -> None:
        """Send jobs, as many as fill the batch that is computed and the next one, which is decoded meanwhile."""
        engine = self._engine
        while engine is not None and self._queue and len(engine.jobs) < 2 * engine.pace.largest:
            job = self._queue.popleft()
            if not job.answer.done():
                job.tries += 1
                engine.send(job)

    def _hear(self, engine: EngineProcess, frame: Frame, job: Job | None) -> None:
        message = frame[0]
        if message.get("event") == "batch" and message["work"] != "explain":
            self.metrics.batch_size.labels(self.name).observe(message["size"])
            self.metrics.batch_seconds.labels(self.name).observe(message["seconds"])
        elif message.get("event") == "note":
            logger.info("model %s: %s", self.name, message["text"])
        if job is not None and not job.answer.done():
            job.content = b""
            self.admission.answered(time.monotonic() - job.arrived, engine.pace)
            job.answer.set_result(frame)
        self._pump()

    def _fail(self, job: Job, detail: str) -> None:
        if not job.answer.done():
            job.answer.set_exception(Problem(503, f"{detail}: try again", retry_after=_RESTART, reason="engine"))
            job.answer.exception()  # noted: its request may have given up

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _digest(description: dict[str, Any], stamp: object) -> str:
    """Return a short name of a model's version, which changes with the file."""
    return hashlib.sha256(repr((sorted(description.get("classes", ())), stamp)).encode()).hexdigest()[:12]
