"""What token merging and test-time augmentation change, as `vitreous evaluate` measures and prints it."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rich.box import SIMPLE_HEAD
from rich.table import Table
from torch import Tensor
from torch.nn.functional import cross_entropy

from vitreous.cli.work.evaluating.scoring import compute_logits
from vitreous.data.sources.opening import Split
from vitreous.evaluate.scoring.any_labels import AnyScores, scores_of
from vitreous.predictor import Classifier

__all__ = ["augmentation_table", "measure_augmentation", "measure_merging", "merging_table"]


def measure_merging(
    unmerged: Classifier, split: Split, labels: Tensor, batch_size: int, *, scores: AnyScores, seconds: float
) -> dict[str, float]:
    """Score the unmerged model, and compare with the scores and the time of the same images with token merging.

    The model must be prepared with the same engine, so that the times compare. ``labels`` are (n,), or (n, K) of 0 and
    1, of which mAP is compared.
    """
    start = time.perf_counter()
    logits = compute_logits(unmerged, split, batch_size)
    taken = time.perf_counter() - start
    without = scores_of(unmerged.info.calibrated(logits), labels)
    name = "top1" if labels.ndim == 1 else "mean_ap"
    values = {name: getattr(scores, name), f"{name}_without": getattr(without, name)}
    return {**values, "times_as_fast": taken / seconds}


def measure_augmentation(
    classifier: Classifier, split: Split, labels: Tensor, batch_size: int, *, logits: Tensor, seconds: float
) -> dict[str, float]:
    """Score a model without test-time augmentation, and compare with the logits (n, K) and the time with it.

    ``labels`` are (n,), or (n, K) of 0 and 1, of which mAP is compared in place of top-1. The model has augmentation
    on, before and after.
    """
    classifier.tta = False
    start = time.perf_counter()
    try:
        plain = compute_logits(classifier, split, batch_size)
    finally:
        classifier.tta = True
    taken = time.perf_counter() - start
    if labels.ndim == 2:
        found, without = (scores_of(classifier.info.calibrated(each.double()), labels) for each in (logits, plain))
        return {
            **{name: getattr(found, name) for name in ("mean_ap", "log_loss")},
            **{f"{name}_without": getattr(without, name) for name in ("mean_ap", "log_loss")},
            "times_as_long": seconds / taken,
        }
    right, right_without = ((each.argmax(1) == labels) for each in (logits, plain))
    loss, loss_without = (
        float(cross_entropy(each / classifier.info.temperature, labels)) for each in (logits.double(), plain.double())
    )
    return {
        "top1": float(right.double().mean()),
        "top1_without": float(right_without.double().mean()),
        "log_loss": loss,
        "log_loss_without": loss_without,
        "put_right": int((right & ~right_without).sum()),
        "put_wrong": int((~right & right_without).sum()),
        "times_as_long": seconds / taken,
    }


def merging_table(count: int, merging: Mapping[str, float]) -> Table:
    """Return the effect of token merging as a table."""
    table = Table(f"{count} tokens merged in each block", box=SIMPLE_HEAD)
    name, heading = ("top1", "top-1") if "top1" in merging else ("mean_ap", "mAP")
    table.add_column(heading, justify="right")
    score, without = merging[name], merging[f"{name}_without"]
    table.add_row("with", f"{score:.2%}")
    table.add_row("without", f"{without:.2%}")
    table.add_row("difference, points", f"{100 * (score - without):+.2f}")
    table.add_row("times as fast, decoding included", f"{merging['times_as_fast']:.2f}")
    return table


def augmentation_table(gain: Mapping[str, float]) -> Table:
    """Return the effect of test-time augmentation as a table."""
    table = Table("test-time augmentation", box=SIMPLE_HEAD)
    name, heading = ("top1", "top-1") if "top1" in gain else ("mean_ap", "mAP")
    for title in (heading, "log loss"):
        table.add_column(title, justify="right")
    table.add_row("with", f"{gain[name]:.2%}", f"{gain['log_loss']:.4f}")
    table.add_row("without", f"{gain[f'{name}_without']:.2%}", f"{gain['log_loss_without']:.4f}")
    points = 100 * (gain[name] - gain[f"{name}_without"])
    table.add_row("gain", f"{points:+.2f} points", f"{gain['log_loss'] - gain['log_loss_without']:+.4f}")
    if "put_right" in gain:
        table.add_row("images corrected, made wrong", f"{gain['put_right']:,}, {gain['put_wrong']:,}", "")
    table.add_row("times as long, decoding included", f"{gain['times_as_long']:.2f}", "")
    return table
