"""A classifier whose results the workers of a Ray cluster compute, in the place of one that computes here."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, cast

import torch
from torch import Tensor

from vitreous import __version__
from vitreous.cluster.parts import PartFolder, decode
from vitreous.cluster.pool import Call, Compute, Pool, settled
from vitreous.data.images.inputs import ImageInput, split_inputs
from vitreous.engines.base import Engine
from vitreous.engines.names import Precision
from vitreous.errors import ConfigError, first_line
from vitreous.predictions import Embedding, Failure, Prediction, input_name
from vitreous.predictor import Classifier, ExportedClassifier
from vitreous.predictor.classifier import Floats

__all__ = ["ClusterClassifier"]


@dataclass(frozen=True)
class _ClusterEngine:
    """What computes in the workers. Single images, as in a report's corruptions, are computed here."""

    compute: Compute
    local: Engine

    @property
    def name(self) -> str:
        return self.compute.engine

    @property
    def precision(self) -> Precision:
        return cast(Precision, self.compute.precision)

    @property
    def device(self) -> str:
        """The device of the workers."""
        return self.compute.device

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return self.local(images)


class ClusterClassifier(Classifier):
    """A classifier with the workers of a pool; the streams of results are as those of :class:`Classifier`.

    Args:
        local: The same model on this machine, for its classes, thresholds and maps.
        pool: The workers.
        arguments: Of :func:`vitreous.load`, by which the workers load it.
        parts: Where finished parts of the results are kept; None: in a folder that ends with this object.
    """

    def __init__(self, local: Classifier, pool: Pool, arguments: Mapping[str, Any], parts: Path | None) -> None:
        self.local, self.info, self.device, self.tta = local, local.info, local.device, local.tta
        self.engine = local.engine
        self._pool, self._arguments = pool, dict(arguments)
        self._temporary = tempfile.TemporaryDirectory(prefix="vitreous-parts-") if parts is None else None
        self._parts = Path(self._temporary.name) if self._temporary is not None else parts
        self._compute: Compute | None = None
        self._expected = 0

    @property
    def model(self) -> Any:  # type: ignore[override]
        """The model on this machine."""
        return self.local.model

    @property
    def features(self) -> int:
        """Length F of an embedding."""
        return self.local.features

    def prepare(self, num_images: int, batch_size: int = 32) -> Engine:
        """Choose the engine of the workers for this many images, in the first of them."""
        if self._compute is None:
            self._expected = -(-num_images // self._pool.size)
            self._compute = self._pool.prepare(self._call("logits", batch_size))
        return _ClusterEngine(self._compute, self.local.prepare(0, batch_size))

    def predict_stream(
        self, items: Iterable[ImageInput], top_k: int = 5, batch_size: int = 32
    ) -> Iterator[Prediction | Failure]:
        """Yield a :class:`Prediction` or a :class:`Failure` for each image, in order."""
        self.require_classes()
        return self._results("predict", items, batch_size, top_k)

    def embed_stream(self, items: Iterable[ImageInput], batch_size: int = 32) -> Iterator[Embedding | Failure]:
        """Yield an :class:`Embedding` or a :class:`Failure` for each image, in order."""
        return self._results("embed", items, batch_size)

    def logits_stream(self, items: Iterable[ImageInput], batch_size: int = 32) -> Iterator[Floats | Failure]:
        """Yield the logits (K,) or a :class:`Failure` for each image, in order."""
        return self._results("logits", items, batch_size)

    def _call(self, kind: str, batch_size: int, top_k: int = 1) -> Call:
        call = Call(kind, self._arguments, batch_size, top_k, self.tta, self._expected)
        return call if self._compute is None else settled(call, self._compute)

    def _results(self, kind: str, items: Iterable[ImageInput], batch_size: int, top_k: int = 1) -> Iterator[Any]:
        """Yield the results of all images in order: those of finished parts from disk, the others as they come."""
        images = list(split_inputs(items)[1])
        if not images:
            return
        self.prepare(len(images), batch_size)
        names = [input_name(image, position) for position, image in enumerate(images)]
        call = self._call(kind, batch_size, top_k)
        assert self._parts is not None  # one of the two folders
        folder = PartFolder(self._parts, self._job(call, images), names)

        def images_of(part: int) -> tuple[Sequence[Any], Sequence[str]]:
            return images[part * folder.size : (part + 1) * folder.size], folder.names_of(part)

        missing = folder.missing()
        finished = set(range(len(folder))) - set(missing)
        coming = self._pool.run(call, missing, images_of)
        for part in range(len(folder)):
            while part not in finished:
                done, table = next(coming)
                folder.write(done, table)
                finished.add(done)
            yield from decode(folder.read(part), folder.names_of(part), self.classes, kind)

    def _job(self, call: Call, images: Sequence[Any]) -> dict[str, Any]:
        """Return what determines the results, apart from the names of the images."""
        arguments = {name: str(value) for name, value in call.model.items() if name != "device"}
        paths = all(isinstance(image, str | os.PathLike) for image in images)
        pixels = "" if paths else _digest(image for image in images if not isinstance(image, str | PurePath))
        options = {"kind": call.kind, "top_k": call.top_k, "tta": call.tta}
        return {"vitreous": __version__, "model": self._identity(), "pixels": pixels, **options, "arguments": arguments}

    def _identity(self) -> str:
        """Return a digest of the model's weights, or the size and time of an exported file."""
        if isinstance(self.local, ExportedClassifier):
            status = Path(self.local.exported.file).stat()
            return f"{status.st_size} bytes of {status.st_mtime_ns}"
        digest = hashlib.sha256(repr(self.info).encode())
        for name, tensor in sorted(self.local.model.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()


def _digest(arrays: Iterable[Any]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        try:
            digest.update(memoryview(array).cast("B"))
        except (TypeError, ValueError) as error:
            kind = type(array).__name__
            raise ConfigError(f"--on takes paths and arrays of pixels, not {kind}: {first_line(error)}") from error
    return digest.hexdigest()
