"""Classify images with a trained model: decode, preprocess, forward pass, class names.

Model files are read by :mod:`vitreous.checkpoint`. Shapes: B batch, C channels, H x W pixels, K classes, F features
(the input of the head's last layer), N images.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import replace
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitreous.accelerate.model import accelerate
from vitreous.checkpoint.model_file import ModelInfo
from vitreous.data.batches.read_ahead import map_ahead
from vitreous.data.images.inputs import ImageInput, split_inputs, strip_name, to_source
from vitreous.data.images.reading import read_image
from vitreous.data.preprocess import EvalPipeline
from vitreous.engines.base import Engine
from vitreous.engines.choose import EngineChoice
from vitreous.engines.names import EngineName, PrecisionName
from vitreous.errors import CheckpointError, ConfigError, DataError
from vitreous.evaluate.trust.thresholds import is_unsure
from vitreous.files.html import html_table
from vitreous.machine.device import resolve_device
from vitreous.model.vit import VisionTransformer
from vitreous.predictions import Embedding, Failure, Prediction, input_name, raise_failures

__all__ = ["Classifier"]

Floats = npt.NDArray[np.float32]
_Flags = npt.NDArray[np.bool_]


class Classifier:
    """A model ready for inference. All methods take images as :meth:`predict` describes them.

    Args:
        model: The model. It is accelerated in place, moved to the device and set to evaluation mode. An engine other
            than PyTorch in float32 copies the weights when it is chosen.
        info: Class names, preprocessing pipeline, temperature and thresholds.
        device: ``auto`` (CUDA, else MPS, else CPU), or a torch device such as ``cpu`` or ``cuda:1``.
        engine: ``torch``, ``openvino``, ``onnxruntime``, or ``auto``: the fastest installed engine whose results agree
            with PyTorch, if the number of images justifies converting the model (:mod:`vitreous.engines.choose`).
        precision: ``float32``: results do not depend on engine or batch size, except that probabilities may differ by
            1e-4, features and logits by 1e-4 of the image's largest. ``bf16``: faster where the hardware supports it;
            probabilities may differ by 0.05, features and logits by 10 % of the largest. ``auto``: bf16 if the hardware
            supports it and the results stay within these bounds, else float32.
        tta: Test-time augmentation: average the probabilities of each image and its mirror image (Krizhevsky et al.,
            2012). Doubles the time; ``vitreous evaluate --tta`` measures the gain. Features are not averaged.
        tell: Called with a line of text when a model is converted, an engine is rejected, or bf16 is used.

    Raises:
        ConfigError: If the device does not exist, or the engine does not support it.
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
        self.device = resolve_device(device)
        self.model = accelerate(model).to(self.device).eval()
        self.info = info
        self.tta = tta
        self.engine: EngineName = engine
        self._choice = EngineChoice(
            self.model,
            info.pipeline,
            info.temperature,
            engine=engine,
            precision=precision,
            rule=info.multilabel,
            tell=tell,
        )
        self._num_computed = 0  # images so far: a conversion may pay off over many calls

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of the logits."""
        return self.info.classes

    @property
    def pipeline(self) -> EvalPipeline:
        """The preprocessing that turns an image into the model's input."""
        return self.info.pipeline

    def __repr__(self) -> str:
        return f"Classifier({len(self.classes)} classes, {self.pipeline.size} pixels, on {self.device})"

    def _repr_html_(self) -> str:
        return html_table(repr(self), [(n, name) for n, name in enumerate(self.classes[:40])])

    @overload  # type checkers regard a str as an Iterable[str] too; the first match counts
    def predict(  # type: ignore[overload-overlap]
        self, x: ImageInput, top_k: int = 5, batch_size: int = 32
    ) -> Prediction: ...
    @overload
    def predict(self, x: Iterable[ImageInput], top_k: int = 5, batch_size: int = 32) -> list[Prediction]: ...
    def predict(
        self, x: ImageInput | Iterable[ImageInput], top_k: int = 5, batch_size: int = 32
    ) -> Prediction | list[Prediction]:
        """Classify one image, or several.

        Args:
            x: A path, the bytes of an image file, a binary file object, a PIL image, an array (H, W) or (H, W, C), or a
                tensor (H, W) or (C, H, W). Arrays and tensors are uint8, or float in [0, 1], with 1, 3 or 4 channels.
                Several images are an iterable of these, an array (N, H, W, C) or a tensor (N, C, H, W).
            top_k: Length of ``Prediction.top``, at least 1; limited to the number of classes.
            batch_size: Images per forward pass, at least 1.

        Raises:
            DataError: If ``x`` is not an image, or any image cannot be read; the error names the first few. URLs are
                refused. Use :meth:`predict_stream` if some images may be unreadable.
        """
        return _one_or_all(x, lambda items: self.predict_stream(items, top_k, batch_size))

    def predict_stream(
        self, items: Iterable[ImageInput], top_k: int = 5, batch_size: int = 32
    ) -> Iterator[Prediction | Failure]:
        """Yield a :class:`Prediction` or a :class:`Failure` for each image, in order.

        Threads decode a few batches ahead of the model, so ``items`` may be an endless iterator.
        """
        self.require_classes()
        _check_positive(top_k=top_k)
        for name, found in self._stream(items, batch_size, self._probabilities_and_logits, self._decide):
            if isinstance(found, Failure):
                yield found
                continue
            row, unsure, held, present = found
            ranking = np.argsort(-row, kind="stable")  # stable: ties keep the order of the classes
            top = tuple((self.classes[i], float(row[i])) for i in ranking[:top_k])
            prediction = Prediction(*top[0], top=top, name=name, unsure=unsure)
            if held is not None and self.info.conformal is not None:
                names = tuple(self.classes[i] for i in ranking if held[i])
                prediction = replace(prediction, set=names, set_coverage=self.info.conformal.coverage)
            if present is not None:
                prediction = replace(prediction, labels=tuple(self.classes[i] for i in ranking if present[i]))
            yield prediction

    def _decide(self, rows: Floats) -> Iterator[tuple[Floats, bool | None, _Flags | None, _Flags | None]]:
        """Yield probabilities (K,), whether the prediction is unsure, set and labels (K,), from rows (B, 2K)."""
        probabilities, logits = np.split(rows, 2, axis=1)  # (B, K) each
        calibrated = torch.from_numpy(logits).double() / self.info.temperature  # (B, K), float64 as in the fit
        abstention, conformal, multilabel = self.info.abstention, self.info.conformal, self.info.multilabel
        unsure = itertools.repeat(None) if abstention is None else is_unsure(abstention, calibrated).tolist()
        held = itertools.repeat(None) if conformal is None else conformal.sets(calibrated.softmax(dim=1))
        several = multilabel.present(torch.from_numpy(logits)).numpy() if multilabel else itertools.repeat(None)
        yield from zip(probabilities, unsure, held, several, strict=False)  # None repeats without end

    def require_classes(self) -> None:
        """Raise :class:`~vitreous.errors.ConfigError` if the model has no head."""
        if not self.classes:
            raise ConfigError("this model has no classification head: use embed to get its features")

    def embed(self, x: ImageInput | Iterable[ImageInput], batch_size: int = 32) -> Floats:
        """Return the input of the head's last layer: (F,) for one image, (N, F) for several."""
        found = _one_or_all(x, lambda items: self.embed_stream(items, batch_size))
        if isinstance(found, Embedding):
            return found.vector
        return np.stack([each.vector for each in found]) if found else np.zeros((0, self.features), np.float32)

    def embed_stream(self, items: Iterable[ImageInput], batch_size: int = 32) -> Iterator[Embedding | Failure]:
        """Yield an :class:`Embedding` or a :class:`Failure` for each image, as :meth:`predict_stream`."""
        for name, row in self._stream(items, batch_size, lambda logits, features: features):
            yield row if isinstance(row, Failure) else Embedding(row, name)

    def logits(self, x: ImageInput | Iterable[ImageInput], batch_size: int = 32) -> Floats:
        """Return the outputs before temperature and softmax: (K,) for one image, (N, K) for several.

        With test-time augmentation, temperature and softmax turn them into the averaged probabilities.
        """
        rows = _one_or_all(x, lambda items: self.logits_stream(items, batch_size))
        if isinstance(rows, np.ndarray):
            return rows
        return np.stack(rows) if rows else np.zeros((0, len(self.classes)), np.float32)

    def logits_stream(self, items: Iterable[ImageInput], batch_size: int = 32) -> Iterator[Floats | Failure]:
        """Yield the logits (K,) or a :class:`Failure` for each image, as :meth:`predict_stream`."""
        for _, row in self._stream(items, batch_size, lambda logits, features: logits):
            yield row

    @property
    def features(self) -> int:
        """Length F of an embedding."""
        return self.model.config.features

    def prepare(self, num_images: int, batch_size: int = 32) -> Engine:
        """Choose and return the engine for this many further images, converting the model if necessary.

        The other methods call this themselves.

        Raises:
            ConfigError: If a requested engine or precision fails, or disagrees with PyTorch in float32.
            OutputError: If a requested engine cannot write its converted model.
        """
        return self._choice.engine(self._num_computed + num_images, min(num_images, batch_size) or batch_size)

    def _stream(
        self,
        items: Iterable[ImageInput],
        batch_size: int,
        select: Callable[[Tensor, Tensor], Tensor],
        finish: Callable[[Floats], Iterable[Any]] = iter,
    ) -> Iterator[tuple[str, Any]]:
        """Yield each image's name with its row of ``finish(select(logits, features))`` or a Failure, in order."""
        _check_positive(batch_size=batch_size)
        _, items = split_inputs(items)
        total = len(items) if isinstance(items, Sized) else None
        engine = self.prepare(total or 0, batch_size)
        decoded = map_ahead(self._pixels, items, ahead=2 * batch_size)
        while chunk := list(itertools.islice(decoded, batch_size)):
            readable = [pixels for _, pixels in chunk if not isinstance(pixels, Failure)]
            if total is None:  # the images so far may justify another engine
                engine = self.prepare(len(readable), batch_size)
            rows = iter(finish(self._run(engine, np.stack(readable), select)) if readable else ())
            self._num_computed += len(readable)
            for name, pixels in chunk:
                yield name, pixels if isinstance(pixels, Failure) else next(rows)

    def _pixels(self, position: int, item: ImageInput) -> tuple[str, npt.NDArray[np.uint8] | Failure]:
        """Return an image's name, and its pixels (H, W, C) at the model's input size."""
        name = input_name(item, position)
        try:
            return name, self.pipeline.pixels(read_image(to_source(item)))
        except DataError as error:
            return name, Failure(name, strip_name(error, name))

    @torch.inference_mode()
    def _run(self, engine: Engine, pixels: npt.NDArray[np.uint8], select: Callable[[Tensor, Tensor], Tensor]) -> Floats:
        """Compute a row per image for pixels (B, H, W, C)."""
        # Transpose while the pixels are uint8: normalised floats have four times the bytes.
        batch = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous().to(self.device)  # (B, C, H, W)
        images = self.pipeline.normalise(batch)
        logits, features = engine(images)  # B K, B F
        if self.tta and self.classes:
            logits = self._average_views(logits, engine(images.flip(-1))[0])
        rows: Floats = select(logits, features).float().cpu().numpy()
        if not np.isfinite(rows).all():
            raise CheckpointError("the model's outputs are not finite: its weights are damaged, or training diverged")
        return rows

    def _average_views(self, *views: Tensor) -> Tensor:
        """Return logits (B, K) whose probabilities are the mean of those of all views.

        Softmax leaves their level open. It is the mean level of the views, so that the largest logit, which may decide
        whether a prediction is unsure, is comparable with that of one view.
        """
        if (rule := self.info.multilabel) is not None:
            return rule.uncalibrated(torch.stack([rule.probabilities(view) for view in views]).mean(0))
        scaled = torch.stack(views) / self.info.temperature  # (V, B, K) for V views
        level = scaled.logsumexp(2, keepdim=True)
        mean_probability = (scaled - level).logsumexp(0) - math.log(len(views))
        return self.info.temperature * (mean_probability + level.mean(0))

    def _probabilities_and_logits(self, logits: Tensor, features: Tensor) -> Tensor:
        return torch.cat([self.info.probabilities(logits), logits], dim=1)  # (B, 2K)


def _one_or_all(x: Any, stream: Callable[[Iterable[ImageInput]], Iterator[Any]]) -> Any:
    """Return the result for a single image, or a list for several; raise one error for all failures."""
    is_single, items = split_inputs(x)
    results = list(stream(items))
    raise_failures(results, is_single)
    return results[0] if is_single else results


def _check_positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise ConfigError(f"{name} is {value}, it must be at least 1")
