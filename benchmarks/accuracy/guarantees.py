"""Whether what `vitreous calibrate` promises holds: many random halves of a test split calibrate, the others check.

Logits are computed once. Each row is a mean over the resplits, with the 2.5 and 97.5 % quantiles of single resplits.

    python benchmarks/accuracy/guarantees.py runs/cifar10-1 cifar10 --data-dir ~/data
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))
from measuring import header
from vitreous.cli.work.scoring import choose_split, compute_logits, labels_by_name, open_data
from vitreous.evaluate.calibration import adaptive_calibration_error, expected_calibration_error
from vitreous.evaluate.selective import SelectionScore, risk_coverage
from vitreous.evaluate.thresholds import Goals, answered, fit_thresholds, held
from vitreous.predictor import load

SETS = {"LAC": ("lac", False), "RAPS": ("raps", False), "class-conditional LAC": ("lac", True)}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--data-dir")
    parser.add_argument("--split", default="test")
    parser.add_argument("--resplits", type=int, default=200)
    parser.add_argument("--precision", type=float, default=0.95)
    parser.add_argument("--coverage", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def resplit(logits: Tensor, labels: Tensor, first: Tensor, options: argparse.Namespace) -> dict[str, float]:
    """Calibrate on one half, `first` (N,) bool, and measure on the other."""
    found: dict[str, float] = {}
    for name, (method, class_conditional) in SETS.items():
        goals = Goals(options.precision, options.coverage, method, class_conditional)
        fit = fit_thresholds(logits[first], labels[first], goals)
        calibrated, true = logits[~first] / fit.temperature, labels[~first]
        sets = held(fit.conformal, calibrated, true)
        found |= {f"{name}: coverage": sets.coverage, f"{name}: classes in a set": sets.mean_size}
        if class_conditional:
            by_class = [held(fit.conformal, calibrated[true == k], true[true == k]).coverage for k in true.unique()]
            found |= {f"{name}: class {k}": value for k, value in enumerate(by_class)}
    found["temperature"] = fit.temperature
    for name, temperature in (("before", 1.0), ("after", fit.temperature)):
        probs = (logits[~first] / temperature).softmax(1)
        found[f"ECE {name}"] = expected_calibration_error(probs, true)
        found[f"equal-mass ECE {name}"] = adaptive_calibration_error(probs, true)
    rule, correct = fit.abstention, (calibrated.argmax(1) == true).numpy()
    kept = answered(rule, calibrated, true)
    found |= {"precision": kept.precision, "answered": kept.share, "kept": float(kept.precision >= options.precision)}
    chosen, largest = rule.score, SelectionScore("max_probability")
    curves = {name: risk_coverage(score(calibrated), correct) for name, score in (("a", chosen), ("b", largest))}
    found |= {"AURC": curves["a"].aurc, "AURC of the largest probability": curves["b"].aurc}
    found |= {"AURC ratio": curves["a"].aurc / curves["b"].aurc, "AUGRC ratio": curves["a"].augrc / curves["b"].augrc}
    found[f"chosen: {chosen.name} {chosen.norm_order:g}"] = 1.0
    return found


def main() -> None:
    options = parse()
    classifier = load(options.model)
    data = open_data(classifier.info, options.data, options.data_dir, options.split)
    _, split = choose_split(data, options.split)
    labels = labels_by_name(classifier.info.classes, data, split)
    logits = compute_logits(classifier, split, batch_size=100).double()
    print(header(torch.device("cpu")), flush=True)
    accuracy = float((logits.argmax(1) == labels).double().mean())
    print(f"{options.resplits} resplits of {len(labels):,} images in two halves, top-1 {accuracy:.2%}")
    rows = defaultdict(list)
    for seed in range(options.seed, options.seed + options.resplits):
        first = torch.zeros(len(labels), dtype=torch.bool)
        first[np.random.default_rng(seed).permutation(len(labels))[: len(labels) // 2]] = True
        for name, value in resplit(logits, labels, first, options).items():
            rows[name].append(value)
    print("| | mean | 95 % of resplits | n |")
    print("|---|---|---|---|")
    for name, values in rows.items():
        low, high = np.quantile(values, [0.025, 0.975])
        print(f"| {name} | {np.mean(values):.4f} | {low:.4f} to {high:.4f} | {len(values)} |")


if __name__ == "__main__":
    main()
