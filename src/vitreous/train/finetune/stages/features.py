"""Features of all images of a split by the fastest engine, in several views, from the cache where it has them.

Shapes: n images, F features that the head reads, P prefix tokens, N patches, D width, T = P + N tokens.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitreous import __version__
from vitreous.accelerate.model import FastVisionTransformer, build
from vitreous.data.batches.read_ahead import map_ahead
from vitreous.data.sources.known import KNOWN
from vitreous.data.sources.opening import Split
from vitreous.engines.base import Engine
from vitreous.engines.cache import digest
from vitreous.engines.choose import EngineChoice
from vitreous.engines.every_token import tokens_alone, with_weights_of
from vitreous.errors import CheckpointError
from vitreous.model.config import ViTConfig
from vitreous.train.finetune.stages.cache import FeatureCache
from vitreous.train.finetune.stages.views import Views
from vitreous.train.setup import Setup

__all__ = ["Extractor", "Features"]

_BATCH = 32  # images of a forward pass, as in `vitreous embed`
_MOST, _PATCHES = 128, 4096  # images, and patches of more images: each thread then has images of its own
_FIRST_BATCH = 2  # where time is short, to see how long an image takes
_SHARD, _SHARD_SECONDS = 2048, 15.0  # images, and time, after which features are stored

Kept = Literal["half", "exact", "none"]
Progress = Callable[[int, int], None]
Batch = tuple[list[int], dict[str, Tensor]]
"""Positions of images, and their features by kind."""


@dataclass(frozen=True, eq=False)
class Features:
    """Features of a view of a split: of all its images, or of those that the time allowed."""

    pooled: Tensor  # (n, F) float32, what the head reads
    tokens: Tensor | None  # (n, T, D), all tokens after the final norm, float16 or float32; None if not asked for
    labels: npt.NDArray[np.int64]  # (n,)
    positions: list[int]  # of the images in the split
    computed: int  # forward passes of this process; the others were in the cache
    seconds: float

    def subset(self, rows: npt.NDArray[np.int64]) -> Features:
        """Return the features of some of the images."""
        chosen = torch.from_numpy(rows)
        tokens = None if self.tokens is None else self.tokens[chosen]
        positions = [self.positions[n] for n in rows]
        return replace(self, pooled=self.pooled[chosen], tokens=tokens, labels=self.labels[rows], positions=positions)


class Extractor:
    """Computes features of a run's images with the engine that `vitreous embed` would choose.

    Args:
        setup: The run; its model is moved to the device.
        with_tokens: Whether tokens are kept too.
        notify: Called with a line when an engine is converted or rejected, or the cache cannot be used.
    """

    def __init__(self, setup: Setup, with_tokens: bool, notify: Callable[[str], None]) -> None:
        self.setup, self.with_tokens, self._notify = setup, with_tokens, notify
        self.views = Views(setup.pipeline, setup.config.augment, setup.config.seed)
        self.model = _headless(setup.model, with_tokens).to(setup.device).eval()
        self._pooling = setup.model.to(setup.device).eval()
        self._choice = EngineChoice(self.model, setup.pipeline, 1.0, engine="auto", tell=notify)
        self._engine: Engine | None = None
        self._opening = 0.0  # seconds in which the engine was chosen
        computed_by = {"version": __version__, "torch": torch.__version__, "device": setup.device.type}
        self._made_from = {"model": _digest(setup.model), "data": _unhashed(setup), **computed_by}
        self.images_per_second = 0.0  # of the last computation, decoding included; 0 if all was in the cache
        self.keeps = False  # whether what was computed last is kept for a second run

    @property
    def engine(self) -> str:
        """The engine that computed, with its precision."""
        return f"{self._engine.name}, {self._engine.precision}" if self._engine else "the cache"

    def extract(
        self,
        split: Split,
        view: int = 0,
        deadline: float | None = None,
        progress: Progress = lambda done, total: None,
        *,
        tokens: Kept = "half",
    ) -> Features:
        """Compute the features of a split.

        Args:
            split: The images.
            view: The view of :class:`Views`.
            deadline: ``time.monotonic()`` after which further images are left out; they come in random order then.
            progress: Called with the numbers of images done and in total.
            tokens: The tokens to keep, if this extractor keeps any: `half` in float16, to fit a head to them, `exact`
                in float32, to score it as the model that it becomes, or `none`.
        """
        started, self._opening = time.monotonic(), 0.0
        kinds = ("pooled", tokens) if self.with_tokens and tokens != "none" else ("pooled",)
        rows = _Rows(len(split))
        request = _Request(split, view, kinds, deadline, lambda: progress(len(rows.filled), len(split)))
        computed = self._fill(rows, request)
        kept, seconds = sorted(rows.filled), time.monotonic() - started
        if computed:
            self.images_per_second = computed / max(seconds - self._opening, 1e-9)
        features = rows.in_order()
        pooled = features.get("pooled", torch.empty(0, self.setup.config.model.features))
        return Features(pooled, features.get(tokens), split.labels[kept], kept, computed, seconds)

    def _fill(self, rows: _Rows, request: _Request) -> int:
        """Fill in features from the cache, compute and store the others, and return how many were computed."""
        split, cache = request.split, FeatureCache({**self._made_from, **self.views.to_dict(request.view)})
        for positions, features in _stored(cache, split.digests, request.kinds):
            rows.fill(positions, features)
        request.progress()
        order: Iterable[int] = range(len(split))
        if request.deadline is not None:
            order = np.random.default_rng(self.setup.config.seed % 2**64).permutation(len(split)).tolist()
        missing = [n for n in order if n not in rows.filled]

        def store(positions: Sequence[int]) -> None:
            if split.digests:
                cache.add([split.digests[n] for n in positions], rows.of(positions))

        with ThreadPoolExecutor(1, "vitreous-features") as writer:  # the next images do not wait for the disk
            shards = _in_shards(self._compute(rows, request, missing))
            writes = [writer.submit(store, positions) for positions in shards]
        for write in writes:
            write.result()
        self.keeps = bool(split.digests) and cache.problem is None
        computed = len(rows.filled) - (len(split) - len(missing))
        if cache.problem is not None and computed:
            self._notify(cache.problem)
        return computed

    def _compute(self, rows: _Rows, request: _Request, positions: Sequence[int]) -> Iterator[list[int]]:
        """Fill in features batch by batch, decoding ahead in threads, until the deadline; yield the positions."""
        if not positions:
            return
        started, split, deadline = time.monotonic(), request.split, request.deadline
        most = max(_BATCH, min(_MOST, _PATCHES // math.prod(self.setup.config.model.grid)))
        self._engine = self._choice.engine(len(split), min(most, len(positions)))
        self._opening = time.monotonic() - started
        decoded = map_ahead(lambda _, n: (n, self.views.pixels(split, n, request.view)), positions, ahead=2 * most)
        size, done, started = most if deadline is None else _FIRST_BATCH, 0, time.monotonic()
        while chunk := list(itertools.islice(decoded, size)):
            batch = [n for n, _ in chunk]
            rows.fill(batch, self._run(np.stack([pixels for _, pixels in chunk]), request.kinds))
            request.progress()
            yield batch
            done += len(batch)
            if deadline is not None:
                seconds, left = time.monotonic() - started, deadline - time.monotonic()
                if left <= 0:
                    decoded.close()  # type: ignore[attr-defined]  # a generator, whose threads end with it
                    return
                size = max(1, min(most, int(left * done / seconds)))

    @torch.inference_mode()
    def _run(self, pixels: npt.NDArray[np.uint8], kinds: Sequence[str]) -> dict[str, Tensor]:
        """Return the features of pixels (B, H, W, C) by kind, on the CPU."""
        assert self._engine is not None
        batch = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous().to(self.setup.device)
        values = self._engine(self.setup.pipeline.normalise(batch))[1]  # (B, F), or (B, T, D)
        found = {"pooled": values}
        if self.with_tokens:
            pooled = self._pooling.read_out(values.to(self.setup.device))
            found = {"pooled": pooled, "half": values.half(), "exact": values}
        found = {kind: found[kind].cpu() for kind in kinds}
        if not bool(torch.isfinite(found["pooled"]).all()):
            raise CheckpointError("the features of the model are not finite: its weights are damaged")
        return found


@dataclass(frozen=True)
class _Request:
    """Which features are computed, and until when."""

    split: Split
    view: int
    kinds: Sequence[str]
    deadline: float | None  # of `time.monotonic()`
    progress: Callable[[], None]


class _Rows:
    """Features of the images of a split by kind, filled in as they come."""

    def __init__(self, count: int) -> None:
        self.filled: set[int] = set()  # positions in the split
        self._count = count
        self._values: dict[str, Tensor] = {}  # (count, ...), of which what is not filled in takes no memory

    def fill(self, positions: Sequence[int], features: Mapping[str, Tensor]) -> None:
        """Fill in features (n, ...) of the images at n positions."""
        for kind, values in features.items():
            if kind not in self._values:
                self._values[kind] = torch.empty(self._count, *values.shape[1:], dtype=values.dtype)
            self._values[kind][positions] = values
        self.filled.update(positions)

    def of(self, positions: Sequence[int]) -> dict[str, Tensor]:
        """Return a copy of the features of some images."""
        return {kind: values[positions] for kind, values in self._values.items()}

    def in_order(self) -> dict[str, Tensor]:
        """Return the features that are filled in, in the order of the split."""
        return self._values if len(self.filled) == self._count else self.of(sorted(self.filled))


def _stored(cache: FeatureCache, digests: Sequence[str], kinds: Sequence[str]) -> Iterator[Batch]:
    """Yield positions and their stored features; tokens that are kept exactly serve as half ones too."""
    missing = set(range(len(digests)))
    for sought in (kinds, ("pooled", "exact")) if "half" in kinds else (kinds,):
        left = sorted(missing)
        for places, features in cache.find([digests[n] for n in left], *sought):
            positions = [left[place] for place in places]
            missing.difference_update(positions)
            yield positions, {kind: features[kind] if kind in features else features["exact"].half() for kind in kinds}


def _in_shards(batches: Iterable[list[int]]) -> Iterator[list[int]]:
    """Join the positions of batches until they are worth a file."""
    positions: list[int] = []
    started = time.monotonic()
    for batch in batches:
        positions += batch
        if len(positions) >= _SHARD or time.monotonic() - started > _SHARD_SECONDS:
            yield positions
            positions, started = [], time.monotonic()
    if positions:
        yield positions


def _headless(model: FastVisionTransformer, with_tokens: bool) -> FastVisionTransformer:
    """Return a copy without the last layer, or without everything behind the tokens."""
    if with_tokens:
        return tokens_alone(model)
    return with_weights_of(model, _without_head(model.config))


def _without_head(config: ViTConfig) -> ViTConfig:
    return replace(config, num_classes=0, class_token=config.has_class_token, dropout=0.0)


def _digest(model: FastVisionTransformer) -> str:
    """Return the digest of a model without the last layer, pooling included, of whose weights no copy is made."""
    with torch.device("meta"):
        headless = build(_without_head(model.config))
    state = model.state_dict()
    headless.load_state_dict({name: state[name] for name in headless.state_dict()}, assign=True)
    return digest(headless)


def _unhashed(setup: Setup) -> str:
    """Return the name of a known data set, whose files stand for their content by name and length; else nothing."""
    source = setup.config.data.source
    return source if source in KNOWN else ""
