"""Before a fine-tuning: what the source's frozen features are worth. After it: whether it did better, and if not, why.

Everything is judged on the validation split; the test split is not touched here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vitreous.data.preprocess import EvalPipeline
from vitreous.evaluate.probes import probe_report
from vitreous.model.config import pair
from vitreous.train.console import View
from vitreous.train.finetune.initialisation import Start, in_pixels
from vitreous.train.results import Selected
from vitreous.train.setup import Prepared

__all__ = ["Probed", "Verdict", "frozen_features", "judge", "probe_first"]

_FEW_STEPS = 200
_FAR_MEAN, _FAR_STD = 1.5, (0.2, 3.0)  # of normalised pixels; photographs under any usual normalisation are within


@dataclass(frozen=True, eq=False)
class Probed:
    """What frozen features reached, as plain values: a resumed run is told them again.

    Attributes:
        report: Of all probes, as :meth:`~vitreous.evaluate.probes.ProbeReport.to_dict` gives it.
        pixels: Mean and standard deviation of the normalised pixels of the validation split.
        seconds: Wall-clock time of features and probes.
    """

    report: dict[str, Any]
    pixels: tuple[float, float]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, ready for JSON."""
        return {"report": self.report, "pixels": list(self.pixels), "seconds": self.seconds}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Probed:
        """Make one of what :meth:`to_dict` gave."""
        mean, std = fields["pixels"]
        return cls(fields["report"], (mean, std), fields["seconds"])

    @property
    def knn(self) -> dict[str, Any]:
        """The number of neighbours `k` that is best on val, the smallest of equals, and its `accuracy` by split."""
        scores: list[dict[str, Any]] = self.report["knn"]["scores"]
        return max(scores, key=lambda score: score["accuracy"]["val"])

    @property
    def best(self) -> tuple[str, float]:
        """The better of the probes and its top-1 on the validation split."""
        scores = {
            "k-NN": self.knn["accuracy"]["val"],
            "the linear probe": self.report["linear"]["accuracy"]["val"],
        }
        name = max(scores, key=lambda each: scores[each])
        return name, scores[name]

    def describe(self) -> str:
        """Both scores in a line."""
        knn, linear = self.knn, self.report["linear"]
        return (
            f"k-NN {100 * knn['accuracy']['val']:.1f} % (k {knn['k']}), linear probe "
            f"{100 * linear['accuracy']['val']:.1f} % (C {linear['C']:g}) on val, frozen features, "
            f"in {self.seconds:.0f} s"
        )


@dataclass(frozen=True)
class Verdict:
    """How a fine-tuning compares with the probes.

    Attributes:
        worse: Whether a probe did better on the validation split.
        text: That in a line.
        reasons: Where it was worse: why that may be and what to try, a line each.
    """

    worse: bool
    text: str
    reasons: tuple[str, ...]


def probe_first(ready: Prepared, view: View) -> Probed:
    """Compute the features of train and val once, at the run's own resolution, and probe them.

    Args:
        ready: The model is still as its source, but for the head, which no feature has passed.
        view: Shows how far it is.
    """
    began = time.monotonic()
    features = {}
    pixels = (0.0, 1.0)
    for name in ("train", "val"):
        with view.counting(f"{name} features"[:9]) as count:
            features[name], pixels = frozen_features(ready, name, count)
    with view.counting("probing") as count:
        report = probe_report(
            features["train"],
            ready.data.splits["train"].labels,
            features["val"],
            ready.data.splits["val"].labels,
            on_val="test" in ready.data.splits,  # as `vitreous probe`, whose numbers these are
            shots=(),
            device="cuda" if ready.device.type == "cuda" else "cpu",
            progress=count,
        )
    return Probed(report.to_dict(), pixels, time.monotonic() - began)


@torch.no_grad()
def frozen_features(
    ready: Prepared, split: str, progress: Any = lambda done, total: None
) -> tuple[npt.NDArray[np.float32], tuple[float, float]]:
    """What the head's last layer would read, for every picture of a split in order.

    Args:
        ready: Of the run; its model is moved to the run's device.
        split: `train`, `val` or `test`.
        progress: Called with (pictures done, all).

    Returns:
        Features (n, D), and the mean and standard deviation of the normalised pixels.
    """
    model, total = ready.model.to(ready.device), len(ready.data.splits[split])
    training = model.training
    model.eval()
    rows, sums = [], torch.zeros(3, dtype=torch.float64)
    for batch in ready.loading.plain_dataloader(split):
        images = ready.pipeline.normalise(batch["images"].to(ready.device))  # B C H W
        sums += torch.stack((images.sum(), images.square().sum(), images.new_tensor(images.numel()))).double().cpu()
        found = model.pooled(images)  # B D, in float32 as `vitreous probe`
        rows.append(found.float().cpu().numpy())
        progress(sum(map(len, rows)), total)
    model.train(training)
    mean, square = (sums[:2] / sums[2]).tolist()
    return np.concatenate(rows), (mean, math.sqrt(max(square - mean**2, 0.0)))


def judge(
    ready: Prepared, start: Start, probed: Probed, selected: Selected, history: Sequence[Mapping[str, float]]
) -> Verdict:
    """Compare a fine-tuning with the probes, and look for causes where it did worse.

    Args:
        ready: Of the run.
        start: Its source.
        probed: What the frozen features reached.
        selected: The weights that are saved.
        history: Rows of metrics.csv.
    """
    name, best = probed.best
    margin = 100 * (selected.scores.top1 - best)
    if margin >= 0:
        text = f"fine-tuning is {margin:.1f} points better than {name} on val" if margin > 0 else ""
        return Verdict(False, text or f"fine-tuning is as good as {name} on val", ())
    reasons = [
        *_of_rate(history, ready.config.optim.lr, selected.epoch),
        *_of_steps(history, selected.epoch),
        *_of_resolution(ready, start),
        *_of_normalisation(ready.pipeline, start, probed.pixels),
    ]
    if not reasons:
        reasons = [
            "learning rate, steps, resolution and normalisation show nothing unusual: so few pictures may not move "
            "these features to better places: --tune linear or --tune last-1 keeps more of them"
        ]
    text = (
        f"fine-tuning did worse than {name}: {100 * selected.scores.top1:.1f} % against {100 * best:.1f} % on val, "
        f"{-margin:.1f} points less"
    )
    return Verdict(True, text, tuple(reasons))


def _of_rate(history: Sequence[Mapping[str, float]], rate: float, epoch: int) -> list[str]:
    """What the training loss says of the learning rate."""
    losses = [row["train_loss"] for row in history]
    if len(losses) < 2:
        return []
    span = f"from {losses[0]:.2f} to {losses[-1]:.2f}"
    if losses[-1] > 1.1 * min(losses):
        return [
            f"learning rate: the training loss rose to {losses[-1]:.2f}: try a lower one, --optim.lr {rate / 3:.1g}"
        ]
    if losses[-1] > 0.9 * losses[0]:
        return [f"learning rate: the training loss hardly moved, {span}: try --optim.lr {3 * rate:.1g}, or a tenth"]
    if epoch <= len(losses) // 4:
        return [
            f"learning rate: epoch {epoch} of {len(losses)} was the best, then val fell: try --optim.lr {rate / 3:.1g}"
        ]
    return []


def _of_steps(history: Sequence[Mapping[str, float]], epoch: int) -> list[str]:
    """Whether training was too short."""
    steps = int(history[-1]["step"]) if history else 0
    if steps < _FEW_STEPS:
        return [f"too few steps: {steps} in all: give more --epochs, or a smaller --batch-size"]
    if epoch == len(history):
        return [f"too few steps: the last epoch was the best, after {steps:,}: give more --epochs"]
    return []


def _of_resolution(ready: Prepared, start: Start) -> list[str]:
    """Whether the model sees another resolution than its source, or than the pictures have."""
    ours, theirs, have = pair(ready.config.model.image_size), pair(start.config.image_size), ready.data.median_size
    reasons = []
    if ours != theirs:
        reasons.append(
            f"resolution: the source was trained at {in_pixels(theirs)} pixels, this run at {in_pixels(ours)}, which "
            f"takes steps to get used to: try --image-size {in_pixels(theirs)}"
        )
    if 2 * max(have) <= min(ours):
        reasons.append(f"resolution: pictures of {in_pixels(have)} pixels, enlarged to {in_pixels(ours)}, are blurred")
    return reasons


def _of_normalisation(pipeline: EvalPipeline, start: Start, pixels: tuple[float, float]) -> list[str]:
    """Whether pictures reach the model otherwise than its source had them."""
    ours, theirs = pipeline.config, start.preprocess
    told = ", ".join(f"{n} {getattr(ours, n)} where the source has {getattr(theirs, n)}" for n in ("mean", "std")
                     if getattr(ours, n) != getattr(theirs, n))  # fmt: skip
    if told:
        return [f"normalisation does not match the source: {told}: leave --preprocess away"]
    if start.assumed:
        return [
            f"normalisation: nothing beside the source's weights says it, mean {ours.mean} and std {ours.std} are "
            "assumed: give the source's own with --preprocess.mean and --preprocess.std"
        ]
    mean, std = pixels
    if abs(mean) > _FAR_MEAN or not _FAR_STD[0] < std < _FAR_STD[1]:
        return [
            f"normalisation: these pictures come out with mean {mean:.2f} and standard deviation {std:.2f}, far from "
            "what the source saw: try --preprocess.mean '[]' --preprocess.std '[]', which measures them here"
        ]
    return []
