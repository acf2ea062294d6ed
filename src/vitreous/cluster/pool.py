"""Workers of a Ray cluster that keep models loaded, and compute the results of images part by part.

A worker that dies is replaced, and the parts that it had are given to others; nothing of them has been kept.
"""

from __future__ import annotations

import os
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from vitreous.cluster.address import connect
from vitreous.cluster.parts import encode
from vitreous.cluster.room import room_for
from vitreous.errors import VitreousError
from vitreous.files.text import visible

if TYPE_CHECKING:
    from vitreous.predictor import Classifier

__all__ = ["Call", "Compute", "Pool", "pool_for", "settled"]

_AHEAD = 2  # parts that a worker has at a time, so that it never waits for the next one
_DEATHS = 4  # of workers with the same part, after which the part is to blame
_PATIENCE = 60.0  # seconds without a result after which a wait for free processors is reported


@dataclass(frozen=True)
class Compute:
    """What computes in the workers."""

    engine: str
    precision: str
    device: str


@dataclass(frozen=True)
class Call:
    """Which method of a classifier to call, and how.

    Attributes:
        kind: `predict`, `embed` or `logits`.
        model: The arguments of :func:`vitreous.load`.
        expected: Images that each worker computes, by which an engine is chosen.
    """

    kind: str
    model: Mapping[str, Any]
    batch_size: int
    top_k: int = 1
    tta: bool = False
    expected: int = 0


class _Worker:
    """The process of an actor: a few models, loaded when they are first needed."""

    def __init__(self, threads: int) -> None:
        import torch

        import vitreous.predictor  # noqa: F401  # takes longer than to load a model, so not with the first images
        from vitreous.machine.allocator import keep_freed_memory

        torch.set_num_threads(threads)
        keep_freed_memory()
        self._loaded: dict[str, Classifier] = {}

    def prepare(self, call: Call) -> tuple[Compute, list[str]]:
        """Load the model and choose its engine; return what was chosen, and the notes of the loading."""
        notes: list[str] = []
        classifier = self._classifier(call, notes.append)
        engine = classifier.prepare(call.expected, call.batch_size)
        return Compute(engine.name, engine.precision, str(classifier.device)), notes

    def compute(self, call: Call, items: Sequence[Any], names: Sequence[str]) -> Any:
        """Return the table of the results of images."""
        classifier = self._classifier(call, lambda note: None)
        classifier.tta = call.tta
        classifier.prepare(call.expected, call.batch_size)
        if call.kind == "predict":
            results: Iterator[Any] = classifier.predict_stream(items, call.top_k, call.batch_size)
        elif call.kind == "embed":
            results = classifier.embed_stream(items, call.batch_size)
        else:
            results = classifier.logits_stream(items, call.batch_size)
        return encode(list(results), names, call.kind)

    def _classifier(self, call: Call, tell: Callable[[str], None]) -> Classifier:
        # Engine and precision are left out: a worker that has chosen them keeps its choice.
        key = repr(sorted((name, str(call.model[name])) for name in call.model if name not in ("engine", "precision")))
        if key not in self._loaded:
            from vitreous.predictor import load

            self._loaded[key] = load(**call.model, tell=tell)
        return self._loaded[key]


@dataclass(eq=False)
class _Member:
    """An actor, and the parts that it has, the one it computes first."""

    actor: Any
    parts: deque[int] = field(default_factory=deque)


class Pool:
    """The workers of a command.

    Args:
        address: The cluster.
        workers: How many; None: one per GPU, or else per machine, but two where there are two processors.
        device: The device that the user asked for.
        tell: Receives notices.
    """

    def __init__(self, address: str, workers: int | None, device: str, tell: Callable[[str], None]) -> None:
        self._ray, self._tell = connect(address, workers or 1), tell
        self._room = room_for(self._ray, workers, device)
        self.size = self._room.workers
        self._actor = self._ray.remote(**self._room.resources, scheduling_strategy="SPREAD")(_Worker)
        self._members = [self._start() for _ in range(self.size)]

    def prepare(self, call: Call) -> Compute:
        """Load a model in the first worker, and return what computes there; the others are to do the same."""
        if "auto" not in (call.model["engine"], call.model["precision"]):  # nothing to wait for
            for member in self._members[1:]:
                member.actor.prepare.remote(call)
        for _ in range(_DEATHS):
            try:
                [found] = self._wait([self._members[0].actor.prepare.remote(call)])
                compute, notes = self._result(found)
            except self._lost:
                self._members[0] = self._start()
                continue
            for note in notes:
                self._tell(note)
            return compute
        raise VitreousError(
            f"{_DEATHS} workers died while they loaded the model: do they have enough memory? Use a smaller batch "
            "size, fewer --workers, or larger machines"
        )

    def run(
        self, call: Call, parts: Sequence[int], items: Callable[[int], tuple[Sequence[Any], Sequence[str]]]
    ) -> Iterator[tuple[int, Any]]:
        """Yield each part and the table of its results, as they are finished.

        ``items`` returns the images of a part and their names.
        """
        queue, deaths = deque(parts), Counter[int]()
        pending: dict[Any, tuple[_Member, int]] = {}
        while queue or pending:
            for member in sorted(self._members, key=lambda each: len(each.parts)):
                while queue and len(member.parts) < _AHEAD:
                    part = queue.popleft()
                    images, names = items(part)
                    sent = [_absolute(image) for image in images]
                    pending[member.actor.compute.remote(call, sent, names)] = member, part
                    member.parts.append(part)
            [reference] = self._wait(list(pending))
            if reference not in pending:
                continue
            member, part = pending.pop(reference)
            try:
                table = self._result(reference)
            except self._lost:
                first = member.parts[0]
                deaths[first] += 1
                if deaths[first] == _DEATHS:
                    raise self._poisoned(items(first)[1]) from None
                queue.extendleft(reversed(member.parts))
                pending = {ref: owner for ref, owner in pending.items() if owner[0] is not member}
                self._replace(member)
                continue
            member.parts.remove(part)
            yield part, table

    @property
    def _lost(self) -> tuple[type[Exception], ...]:
        """The errors that say that a worker, or its machine, is gone."""
        errors = self._ray.exceptions
        return errors.RayActorError, errors.OutOfMemoryError, errors.NodeDiedError, errors.ObjectLostError

    def _start(self) -> _Member:
        return _Member(self._actor.remote(self._room.threads))

    def _replace(self, member: _Member) -> None:
        self._tell("a worker died: another one takes over its images")
        self._ray.kill(member.actor)
        self._members[self._members.index(member)] = self._start()

    def _wait(self, references: list[Any]) -> list[Any]:
        """Return the first reference that is ready; say so once if none is for long."""
        ready, _ = self._ray.wait(references, num_returns=1, timeout=_PATIENCE)
        if not ready:
            self._tell(f"no result for {_PATIENCE:.0f} s; {self._room.compare_with_free(self._ray)}")
            ready, _ = self._ray.wait(references, num_returns=1, timeout=None)
        return list(ready)

    def _result(self, reference: Any) -> Any:
        """Return a result, or raise the error of the worker as it would be raised here."""
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from None

    def _poisoned(self, names: Sequence[str]) -> VitreousError:
        return VitreousError(
            f"{_DEATHS} workers died with the images from '{visible(names[0])}' to '{visible(names[-1])}': leave out "
            "the image that ends them, or give each worker more memory with fewer --workers"
        )


_pools: weakref.WeakValueDictionary[tuple[Any, ...], Pool] = weakref.WeakValueDictionary()


def pool_for(address: str, workers: int | None, device: str, tell: Callable[[str], None]) -> Pool:
    """Return the pool of a command: all its models share one, since a second one would wait for its processors."""
    key = (address, workers, device)
    pool = _pools.get(key)
    if pool is None:
        pool = _pools[key] = Pool(address, workers, device, tell)
    return pool


def _absolute(image: Any) -> Any:
    """Return a path as workers need it, who are in another folder; other images as they are."""
    if isinstance(image, str):
        return os.path.abspath(image) if image and "\0" not in image else image
    return Path(image).absolute() if isinstance(image, PurePath) else image


def settled(call: Call, compute: Compute) -> Call:
    """Return a call for workers that are to compute as the first one does."""
    return replace(call, model={**call.model, "engine": compute.engine, "precision": compute.precision})
