"""Image in, labels out: a loaded model with its pipeline and class names. What a file holds is `checkpoint.artifact`.

Shapes: B batch, C channels, H x W pixels, K classes, F features that the head's last layer reads.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitreous.checkpoint.model_file import ModelInfo
from vitreous.checkpoint.opening import OpenOptions, open_checkpoint
from vitreous.checkpoint.resize import Resample
from vitreous.data.batches.read_ahead import done_ahead
from vitreous.data.images.given import Given, as_source, name_of, reason_of, separate
from vitreous.data.images.reading import read_picture
from vitreous.data.preprocess import EvalPipeline
from vitreous.engines.base import Engine
from vitreous.engines.choose import EngineChoice
from vitreous.engines.device import choose_device
from vitreous.engines.names import EngineName, PrecisionName
from vitreous.errors import CheckpointError, ConfigError, DataError
from vitreous.files.html import html_bars, html_table
from vitreous.model.config import Size2d
from vitreous.model.merging import merge_tokens as merge
from vitreous.model.vit import VisionTransformer

__all__ = ["Classifier", "Embedding", "Failure", "Prediction", "load"]

Floats = npt.NDArray[np.float32]

_SHOWN = 5  # unreadable pictures that an error spells out


@dataclass(frozen=True)
class Prediction:
    """What a picture shows.

    Args:
        label: The most probable class.
        probability: Its probability in [0, 1], calibrated where the model has a temperature.
        top: The most probable classes with their probabilities, most probable first.
        name: The picture's path, or its position such as ``#0`` where it has none.
    """

    label: str
    probability: float
    top: tuple[tuple[str, float], ...]
    name: str

    def _repr_html_(self) -> str:
        return html_bars(self.name, self.top)


@dataclass(frozen=True)
class Embedding:
    """A picture's features (F,), float32, and its name as in :class:`Prediction`."""

    vector: Floats
    name: str


@dataclass(frozen=True)
class Failure:
    """A picture that cannot be read: its name as in :class:`Prediction`, and why."""

    name: str
    reason: str


class Classifier:
    """A model that is ready for use.

    Args:
        model: Its weights; it is moved to the device and set to evaluation mode. An engine that is not PyTorch in
            float32 keeps a copy of them, made when it is chosen.
        info: Class names, pipeline and temperature.
        device: ``auto`` (CUDA, else Apple's GPU, else CPU), or a torch device such as ``cpu`` or ``cuda:1``.
        engine: What computes: ``torch``, ``openvino``, ``onnxruntime``, or ``auto``: the fastest of those that are
            installed, agree with PyTorch in float32 on check images, and pay for as many images as there are
            (:mod:`vitreous.engines.choose`).
        precision: What it multiplies in. ``float32``: one image gets the same numbers from every call on one machine,
            whichever engine, batch size or way of giving it: probabilities to 1e-4, features and logits to 1e-4 of
            the image's largest. ``bf16``: faster where the device computes it, and further from them: probabilities by
            up to 0.05, features and logits by up to 10 % of the largest. ``auto``: bf16 where the device computes it in
            hardware and it agrees, else float32.
        tta: Test-time augmentation: probabilities are the mean of those of an image and of its mirror image, as
            Krizhevsky et al. (2012) average their softmax outputs over crops and mirrored crops. Takes twice the time;
            ``vitreous evaluate --tta`` measures the gain. Features stay those of the image.
        tell: Is told, in a line, when a model is converted, when an engine is passed over, and of bf16.

    Raises:
        ConfigError: If the device is not there, or the engine does not run on it.
        MissingExtraError: If the engine is not installed.
    """

    def __init__(
        self,
        model: VisionTransformer,
        info: ModelInfo,
        device: str | torch.device = "auto",
        *,
        engine: EngineName = "torch",
        precision: PrecisionName = "float32",
        tta: bool = False,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.device = choose_device(device)
        self.model = model.to(self.device).eval()
        self.info = info
        self.tta = tta
        self._choice = EngineChoice(
            self.model, info.pipeline, info.temperature, engine=engine, precision=precision, tell=tell
        )
        self._seen = 0  # pictures computed so far: what a conversion costs may be saved over many calls

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of the logits."""
        return self.info.classes

    @property
    def pipeline(self) -> EvalPipeline:
        """How a picture becomes the model's input."""
        return self.info.pipeline

    def __repr__(self) -> str:
        return f"Classifier({len(self.classes)} classes, {self.pipeline.size} pixels, on {self.device})"

    def _repr_html_(self) -> str:
        return html_table(repr(self), [(n, name) for n, name in enumerate(self.classes[:40])])

    @overload  # a str is an iterable of str for a type checker; the first match is the one that counts
    def predict(  # type: ignore[overload-overlap]
        self, x: Given, top_k: int = 5, batch_size: int = 32
    ) -> Prediction: ...
    @overload
    def predict(self, x: Iterable[Given], top_k: int = 5, batch_size: int = 32) -> list[Prediction]: ...
    def predict(
        self, x: Given | Iterable[Given], top_k: int = 5, batch_size: int = 32
    ) -> Prediction | list[Prediction]:
        """Say what is on a picture, or on each of several.

        Args:
            x: A path, the bytes of an image file or a binary file object, a PIL image, an array (H, W) or (H, W, C), or
                a tensor (H, W) or (C, H, W), both of uint8, or float in [0, 1], with 1, 3 or 4 channels. Several are
                an iterable of these, an array (B, H, W, C) or a tensor (B, C, H, W).
            top_k: Classes in ``Prediction.top``, at least 1; all of them where the model has fewer.
            batch_size: Pictures per forward pass, at least 1.

        Raises:
            DataError: If images cannot be read: the first ones by name and reason, and how many. For a list that
                may have some, see :meth:`predict_stream`. Or if ``x`` is no image, nor several. A URL is none: nothing
                is fetched.
        """
        return _one_or_all(x, lambda items: self.predict_stream(items, top_k, batch_size))

    def predict_stream(
        self, items: Iterable[Given], top_k: int = 5, batch_size: int = 32
    ) -> Iterator[Prediction | Failure]:
        """Yield a :class:`Prediction`, or a :class:`Failure`, for each picture, in order, as they are computed.

        ``items`` is read a few batches ahead, so it may be endless; threads decode meanwhile.
        """
        self.require_classes()
        _check_positive(top_k=top_k)
        for name, row in self._rows(items, batch_size, self._probabilities):
            yield row if isinstance(row, Failure) else self._prediction(name, row, top_k)

    def require_classes(self) -> None:
        """Refuse a model that has none.

        Raises:
            ConfigError: If it has no head.
        """
        if not self.classes:
            raise ConfigError("this model has no head, and so no classes to predict: embed gives its features")

    def embed(self, x: Given | Iterable[Given], batch_size: int = 32) -> Floats:
        """Return the features that the head's last layer reads: (F,) for one picture, (n, F) for several.

        Arguments and errors as :meth:`predict`.
        """
        found = _one_or_all(x, lambda items: self.embed_stream(items, batch_size))
        if isinstance(found, Embedding):
            return found.vector
        return np.stack([each.vector for each in found]) if found else np.zeros((0, self.features), np.float32)

    def embed_stream(self, items: Iterable[Given], batch_size: int = 32) -> Iterator[Embedding | Failure]:
        """Yield an :class:`Embedding`, or a :class:`Failure`, for each picture, as :meth:`predict_stream`."""
        for name, row in self._rows(items, batch_size, lambda logits, features: features):
            yield row if isinstance(row, Failure) else Embedding(row, name)

    def logits(self, x: Given | Iterable[Given], batch_size: int = 32) -> Floats:
        """Return the outputs before temperature and softmax: (K,) for one picture, (n, K) for several.

        With test-time augmentation, those from which temperature and softmax make the mean probabilities. Arguments
        and errors as :meth:`predict`.
        """
        rows = _one_or_all(x, lambda items: self.logits_stream(items, batch_size))
        if isinstance(rows, np.ndarray):
            return rows
        return np.stack(rows) if rows else np.zeros((0, len(self.classes)), np.float32)

    def logits_stream(self, items: Iterable[Given], batch_size: int = 32) -> Iterator[Floats | Failure]:
        """Yield the logits (K,), or a :class:`Failure`, for each picture, as :meth:`predict_stream`."""
        for _, row in self._rows(items, batch_size, lambda logits, features: logits):
            yield row

    @property
    def features(self) -> int:
        """Length of an embedding (F)."""
        return self.model.config.features

    def prepare(self, pictures: int, batch_size: int = 32) -> Engine:
        """Choose the engine that computes this many more pictures, which may convert the model, and return it.

        The methods above do so by themselves: for all that they are given, or of an iterator batch by batch.

        Raises:
            ConfigError: If an engine or precision was named that fails, or disagrees with PyTorch in float32.
            OutputError: If an engine was named, and no folder for its graph can be written.
        """
        return self._choice.engine(self._seen + pictures, min(pictures, batch_size) or batch_size)

    def _rows(
        self, items: Iterable[Given], batch_size: int, take: Callable[[Tensor, Tensor], Tensor]
    ) -> Iterator[tuple[str, Floats | Failure]]:
        """Yield each picture's name with its row of what ``take`` makes of a batch's outputs, in order."""
        _check_positive(batch_size=batch_size)
        _, items = separate(items)
        known = len(items) if isinstance(items, Sized) else None
        engine = self.prepare(known or 0, batch_size)
        decoded = done_ahead(self._pixels, items, ahead=2 * batch_size)
        while chunk := list(itertools.islice(decoded, batch_size)):
            readable = [pixels for _, pixels in chunk if not isinstance(pixels, Failure)]
            if known is None:  # another engine may pay by now
                engine = self.prepare(len(readable), batch_size)
            rows = iter(self._run(engine, np.stack(readable), take) if readable else ())
            self._seen += len(readable)
            for name, pixels in chunk:
                yield name, pixels if isinstance(pixels, Failure) else next(rows)

    def _pixels(self, position: int, item: Given) -> tuple[str, npt.NDArray[np.uint8] | Failure]:
        """Decode one picture and fit it to the model's rectangle (H, W, C), or say why not; with its name."""
        name = name_of(item, position)
        try:
            return name, self.pipeline.pixels(read_picture(as_source(item)))
        except DataError as error:
            return name, Failure(name, reason_of(error, name))

    @torch.inference_mode()
    def _run(self, engine: Engine, pixels: npt.NDArray[np.uint8], take: Callable[[Tensor, Tensor], Tensor]) -> Floats:
        """Compute rows for pixels B x H x W x C."""
        # Put in order as bytes, a quarter of the floats that the pipeline makes of them: half the time of the step.
        batch = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous().to(self.device)  # B C H W
        images = self.pipeline.normalise(batch)
        logits, features = engine(images)
        if self.tta and self.classes:
            logits = self._mean_of_views(logits, engine(images.flip(-1))[0])
        rows: Floats = take(logits, features).float().cpu().numpy()
        if not np.isfinite(rows).all():
            raise CheckpointError(
                "the model's outputs are not finite: its weights are damaged, or its training diverged"
            )
        return rows

    def _mean_of_views(self, *views: Tensor) -> Tensor:
        """Logits B x K whose probabilities, by the model's temperature, are the mean of those of several views."""
        chances = torch.stack([(logits / self.info.temperature).log_softmax(1) for logits in views])  # V B K
        return self.info.temperature * (chances.logsumexp(0) - math.log(len(views)))

    def _probabilities(self, logits: Tensor, features: Tensor) -> Tensor:
        return (logits / self.info.temperature).softmax(dim=1)  # B K

    def _prediction(self, name: str, probabilities: Floats, top_k: int) -> Prediction:
        """Name the most probable classes; equal ones come in the order of the classes."""
        order = np.argsort(-probabilities, kind="stable")[:top_k]
        top = tuple((self.classes[i], float(probabilities[i])) for i in order)
        return Prediction(label=top[0][0], probability=top[0][1], top=top, name=name)


def load(
    source: str | os.PathLike[str],
    device: str | torch.device = "auto",
    image_size: Size2d | None = None,
    resample: Resample | None = None,
    *,
    engine: EngineName = "auto",
    precision: PrecisionName = "float32",
    merge_tokens: int = 0,
    tta: bool = False,
    tell: Callable[[str], None] | None = None,
) -> Classifier:
    """Load a classifier.

    Args:
        source: A ``model.safetensors`` or a run folder; or a file, folder or hub id of Google's, timm's, Hugging Face's
            or torchvision's Vision Transformers (:mod:`vitreous.checkpoint.opening`).
        device: As :class:`Classifier` takes it.
        image_size: Height and width in pixels to see pictures at, in multiples of the patch; position embeddings are
            resampled. None: what the model was made for.
        resample: Whose function resamples them: `google`, `timm`, `huggingface`, `torchvision` or `dinov2`. None: that
            of the family that the model comes from.
        engine: As :class:`Classifier` takes it. ``torch`` in ``float32`` is what others are compared with.
        precision: As :class:`Classifier` takes it.
        merge_tokens: Patches that are joined with others in each block, for speed at some loss
            (:mod:`vitreous.model.merging`); 0 is the model as it is.
        tta: As :class:`Classifier` takes it.
        tell: As :class:`Classifier` takes it.

    Raises:
        CheckpointError: If the file cannot be used.
        ConfigError: If the device is not there, patches do not tile the image size, tokens cannot be merged, or the
            engine does not run on the device.
        MissingExtraError: If it is a hub id and huggingface_hub is not installed, or the engine is not.
    """
    model, info = open_checkpoint(source, OpenOptions(image_size=image_size, resample=resample))
    merge(model, merge_tokens)
    return Classifier(model, info, device, engine=engine, precision=precision, tta=tta, tell=tell)


def _one_or_all(x: Any, stream: Callable[[Iterable[Given]], Iterator[Any]]) -> Any:
    """Return what a stream gives for one image, or a list for several; raise one error for all failures."""
    single, items = separate(x)
    found = list(stream(items))
    failures = [each for each in found if isinstance(each, Failure)]
    if failures:
        named = "; ".join(f"{each.name}: {each.reason}" for each in failures[:_SHOWN])
        rest = f"; and {len(failures) - _SHOWN} more" if len(failures) > _SHOWN else ""
        count = "" if single else f"{len(failures)} of {len(found)} pictures cannot be read: "
        raise DataError(f"{count}{named}{rest}")
    return found[0] if single else found


def _check_positive(**values: int) -> None:
    """Refuse counts below 1."""
    for name, value in values.items():
        if value < 1:
            raise ConfigError(f"{name} is {value}, it must be at least 1")
