"""Scores the frozen features before fine-tuning, and afterwards compares the fine-tuned model with them.

All scores are on the validation split.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vitreous.data.preprocess import EvalPipeline
from vitreous.evaluate.features.probes import probe_report
from vitreous.model.config import pair
from vitreous.train.console import Display
from vitreous.train.finetune.initialisation import Pretrained, in_pixels
from vitreous.train.finetune.trainable import evaluating
from vitreous.train.results import SelectedWeights
from vitreous.train.setup import Setup

__all__ = ["ProbeResult", "Verdict", "compare_with_probe", "finetune_report", "frozen_features", "probe_first"]

Progress = Callable[[int, int], None]

_SHARE, _SURE = 0.2, 0.1  # of the time left that features may take; of that, after which their whole time is estimated
_FEW_STEPS = 200
_MAX_MEAN, _STD_RANGE = 1.5, (0.2, 3.0)  # normalised pixels of photographs are within under any usual normalisation


@dataclass(frozen=True, eq=False)
class ProbeResult:
    """Scores of the frozen features, as JSON values, which a checkpoint stores."""

    report: dict[str, Any]  # all probes, from ProbeReport.to_dict
    pixels: tuple[float, float]  # mean and standard deviation of the normalised pixels of the validation split
    seconds: float  # time of features and probes

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {"report": self.report, "pixels": list(self.pixels), "seconds": self.seconds}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> ProbeResult:
        """Restore what :meth:`to_dict` returned."""
        mean, std = fields["pixels"]
        return cls(fields["report"], (mean, std), fields["seconds"])

    @property
    def knn(self) -> dict[str, Any]:
        """The best number of neighbours `k` on val, the smallest of equals, and its `accuracy` by split."""
        scores: list[dict[str, Any]] = self.report["knn"]["scores"]
        return max(scores, key=lambda score: score["accuracy"]["val"])

    @property
    def best(self) -> tuple[str, float]:
        """Name and validation top-1 of the better probe."""
        scores = {"k-NN": self.knn["accuracy"]["val"], "the linear probe": self.report["linear"]["accuracy"]["val"]}
        return max(scores.items(), key=lambda item: item[1])

    def describe(self) -> str:
        """Describe both scores in one line."""
        knn, linear = self.knn, self.report["linear"]
        return (
            f"k-NN {100 * knn['accuracy']['val']:.1f} % (k {knn['k']}), linear probe "
            f"{100 * linear['accuracy']['val']:.1f} % (C {linear['C']:g}) on val, frozen features, "
            f"in {self.seconds:.0f} s"
        )


@dataclass(frozen=True)
class Verdict:
    """Comparison of a fine-tuned model with the probes."""

    worse: bool  # whether a probe is better on the validation split
    text: str  # the comparison in one line
    reasons: tuple[str, ...]  # if worse: possible reasons and what to try, one line each


def probe_first(setup: Setup, view: Display, seconds_left: float = math.inf) -> ProbeResult | None:
    """Probe the features of the training and validation split at the resolution of the run.

    None, and a line that says so, if the features would take too much of the seconds left of a budget.
    """
    started, features, pixels = time.monotonic(), {}, (0.0, 1.0)
    ends = started + _SHARE * seconds_left
    try:
        for name in ("train", "val"):
            with view.counting(f"{name} features"[:9]) as count:
                features[name], pixels = frozen_features(setup, name, _until(ends, count))
    except _TooSlowError:
        share = f"{100 * _SHARE:g} % of the {seconds_left:.0f} s left of the budget"
        view.line("probe", f"skipped: frozen features would take more than {share}")
        return None
    with view.counting("probing") as count:
        report = probe_report(
            features["train"],
            setup.data.splits["train"].labels,
            features["val"],
            setup.data.splits["val"].labels,
            on_val="test" in setup.data.splits,  # as in `vitreous probe`, which gives the same scores
            shots=(),
            device="cuda" if setup.device.type == "cuda" else "cpu",
            progress=count,
        )
    return ProbeResult(report.to_dict(), pixels, time.monotonic() - started)


class _TooSlowError(Exception):
    """The features would take longer than they may."""


def _until(ends: float, progress: Progress) -> Progress:
    """Return what counts as `progress` does, and raises an error if the work would go on after `ends`."""
    began = time.monotonic()

    def counted(done: int, total: int) -> None:
        progress(done, total)
        taken = time.monotonic() - began
        if taken > _SURE * (ends - began) and began + taken / done * total > ends:
            raise _TooSlowError

    return counted


@torch.no_grad()
def frozen_features(
    setup: Setup, split: str, progress: Any = lambda done, total: None
) -> tuple[npt.NDArray[np.float32], tuple[float, float]]:
    """Compute the input of the head for all images of a split, in order; this moves the model to the run's device.

    Returns:
        Features (images, width), and the mean and standard deviation of the normalised pixels.
    """
    model, total = setup.model.to(setup.device), len(setup.data.splits[split])
    rows, sums = [], torch.zeros(3, dtype=torch.float64)
    with evaluating(model):
        for batch in setup.data_module.feature_dataloader(split):
            images = setup.pipeline.normalise(batch["images"].to(setup.device))
            sums += torch.stack((images.sum(), images.square().sum(), images.new_tensor(images.numel()))).double().cpu()
            rows.append(model(images, "features").float().cpu().numpy())  # in float32 as `vitreous probe`
            progress(sum(map(len, rows)), total)
    mean, square = (sums[:2] / sums[2]).tolist()
    return np.concatenate(rows), (mean, math.sqrt(max(square - mean**2, 0.0)))


def compare_with_probe(
    setup: Setup, probe: ProbeResult | None, selected: SelectedWeights, history: Sequence[Mapping[str, float]]
) -> Verdict | None:
    """Compare a fine-tuned model with the probes, and look for reasons in `history` (metrics.csv) if it is worse."""
    if setup.pretrained is None or probe is None:
        return None
    name, best = probe.best
    top1 = selected.class_scores.top1
    margin = 100 * (top1 - best)
    if margin >= 0:
        how = f"{margin:.1f} points better than" if margin > 0 else "as good as"
        return Verdict(False, f"fine-tuning is {how} {name} on val", ())
    reasons = [
        *_learning_rate_reasons(history, setup.config.optim.lr, selected.epoch),
        *_step_reasons(history, selected.epoch),
        *_resolution_reasons(setup, setup.pretrained),
        *_normalisation_reasons(setup.pipeline, setup.pretrained, probe.pixels),
    ]
    if not reasons:
        reasons = [
            "learning rate, steps, resolution and normalisation look normal: the images may be too few to "
            "improve these features. --tune linear or --tune last-1 keeps more of them"
        ]
    text = (
        f"fine-tuning did worse than {name}: {100 * top1:.1f} % against {100 * best:.1f} % on val, "
        f"{-margin:.1f} points less"
    )
    return Verdict(True, text, tuple(reasons))


def finetune_report(setup: Setup, probe: ProbeResult | None, verdict: Verdict | None) -> dict[str, Any] | None:
    """Return the section of report.json on fine-tuning; None for a run from random weights."""
    if setup.pretrained is None:
        return None
    return {
        "source": setup.pretrained.to_dict(),
        "mode": setup.config.tune.mode,
        "trained_parameters": sum(p.numel() for p in setup.model.parameters() if p.requires_grad),
        "probe": probe.report if probe else None,
        "verdict": asdict(verdict) if verdict else None,
    }


def _learning_rate_reasons(history: Sequence[Mapping[str, float]], rate: float, epoch: int) -> list[str]:
    losses = [row["train_loss"] for row in history]
    if len(losses) < 2:
        return []
    span = f"from {losses[0]:.2f} to {losses[-1]:.2f}"
    if losses[-1] > 1.1 * min(losses):
        rose = f"the training loss rose to {losses[-1]:.2f}"
        return [f"learning rate: {rose}: try a lower one, --optim.lr {rate / 3:.1g}"]
    if losses[-1] > 0.9 * losses[0]:
        return [f"learning rate: the training loss hardly changed, {span}: try --optim.lr {3 * rate:.1g}, or a tenth"]
    if epoch <= len(losses) // 4:
        best = f"epoch {epoch} of {len(losses)} was the best"
        return [f"learning rate: {best}, val fell after it: try --optim.lr {rate / 3:.1g}"]
    return []


def _step_reasons(history: Sequence[Mapping[str, float]], epoch: int) -> list[str]:
    steps = int(history[-1]["step"]) if history else 0
    if steps < _FEW_STEPS:
        return [f"too few steps: {steps} in all: give more --epochs, or a smaller --batch-size"]
    if epoch == len(history):
        return [f"too few steps: the last epoch was the best, after {steps:,}: give more --epochs"]
    return []


def _resolution_reasons(setup: Setup, pretrained: Pretrained) -> list[str]:
    ours, theirs, have = pair(setup.config.model.image_size), pair(pretrained.config.image_size), setup.data.median_size
    reasons = []
    if ours != theirs:
        reasons.append(
            f"resolution: the source was trained at {in_pixels(theirs)} pixels, this run at {in_pixels(ours)}, which "
            f"takes steps to adapt to: try --image-size {in_pixels(theirs)}"
        )
    if 2 * max(have) <= min(ours):
        reasons.append(f"resolution: images of {in_pixels(have)} pixels, enlarged to {in_pixels(ours)}, are blurred")
    return reasons


def _normalisation_reasons(pipeline: EvalPipeline, pretrained: Pretrained, pixels: tuple[float, float]) -> list[str]:
    ours, theirs = pipeline.config, pretrained.preprocess
    if names := [name for name in ("mean", "std") if getattr(ours, name) != getattr(theirs, name)]:
        differing = ", ".join(f"{n} {getattr(ours, n)} where the source has {getattr(theirs, n)}" for n in names)
        return [f"normalisation does not match the source: {differing}: omit --preprocess"]
    if pretrained.assumed:
        return [
            f"normalisation: the source does not specify it, mean {ours.mean} and std {ours.std} are "
            "assumed: give those of the source with --preprocess.mean and --preprocess.std"
        ]
    mean, std = pixels
    if abs(mean) > _MAX_MEAN or not _STD_RANGE[0] < std < _STD_RANGE[1]:
        return [
            f"normalisation: the normalised images have mean {mean:.2f} and standard deviation {std:.2f}, far from "
            "0 and 1: try --preprocess.mean '[]' --preprocess.std '[]', which measures them on these images"
        ]
    return []
