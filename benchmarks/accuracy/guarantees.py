"""Whether what `vitreous calibrate` promises holds on images that it did not see, over random halves of a test split.

The logits are computed once. Each resplit calibrates on one half of the images and measures on the other half.

    python benchmarks/accuracy/guarantees.py runs/cifar10-1 cifar10 --data-dir ~/data

Precision on a test half varies with its images. For the promise itself, a second row calibrates on as many images drawn
from all with replacement, and measures on all images, which are then the population.

N images, K classes, R resplits.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from measuring import header
from vitreous.cli.work.evaluating.scoring import choose_split, compute_logits, labels_by_name, open_data
from vitreous.errors import DataError
from vitreous.evaluate.scoring.intervals import wilson
from vitreous.evaluate.trust.calibration import calibrate, choose_temperature
from vitreous.evaluate.trust.conformal import fit_lac, fit_raps
from vitreous.evaluate.trust.selective import SelectionScore, candidate_scores, risk_coverage
from vitreous.evaluate.trust.thresholds import Goals, answered, fit_thresholds
from vitreous.predictor import load

COVERAGE, PRECISION = 0.9, 0.95


class Half(NamedTuple):
    """Logits (n, K) before the temperature and labels (n,) of one half of the images."""

    logits: torch.Tensor
    labels: torch.Tensor


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--data-dir")
    parser.add_argument("--split", help="default: the test split")
    parser.add_argument("--resplits", type=int, default=200)
    parser.add_argument("--precision", type=float, default=PRECISION)
    parser.add_argument("--coverage", type=float, default=COVERAGE)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def predictions(options: argparse.Namespace) -> Half:
    """Return the logits (N, K) and labels (N,) of the split."""
    classifier = load(options.model, engine="torch")
    data = open_data(classifier.info, options.data, options.data_dir, options.split)
    name, split = choose_split(data, options.split)
    labels = labels_by_name(classifier.classes, data, split)
    logits = compute_logits(classifier, split, 256).double()
    right = int((logits.argmax(1) == labels).sum())
    print(f"{len(labels):,} images of {data.name}, {name}; top-1 {right / len(labels):.2%}", flush=True)
    return Half(logits, labels)


def resplits(whole: Half, count: int, seed: int) -> Iterator[tuple[Half, Half]]:
    """Yield random calibration and test halves."""
    generator = np.random.default_rng(seed)
    for _ in range(count):
        order = torch.from_numpy(generator.permutation(len(whole.labels)))
        first, rest = order[: len(order) // 2], order[len(order) // 2 :]
        yield Half(whole.logits[first], whole.labels[first]), Half(whole.logits[rest], whole.labels[rest])


def redrawn(whole: Half, generator: np.random.Generator) -> Half:
    """Return half as many images, drawn with replacement."""
    rows = torch.from_numpy(generator.integers(0, len(whole.labels), len(whole.labels) // 2))
    return Half(whole.logits[rows], whole.labels[rows])


def precision_of(known: Half, new: Half, wanted: float) -> tuple[float | None, float, SelectionScore] | None:
    """Return precision, share answered and score of a rule fitted on known images, or None if there is no rule."""
    try:
        fit = fit_thresholds(*known, Goals(precision=wanted))
    except DataError:
        return None
    done = answered(fit.abstention, new.logits / fit.temperature, new.labels)
    return done.precision, done.share, fit.abstention.score


def measure_sets(known: Half, new: Half, coverage: float) -> dict[str, np.ndarray]:
    """Return coverage, mean size and coverage by class (K + 2,) of each kind of sets."""
    temperature = choose_temperature(*known)
    probs, fresh = (torch.softmax(half.logits / temperature, dim=1) for half in (known, new))
    rules = {
        "LAC": fit_lac(probs, known.labels, coverage),
        "LAC, by class": fit_lac(probs, known.labels, coverage, class_conditional=True),
        "RAPS": fit_raps(probs, known.labels, coverage),
        "RAPS, randomised": fit_raps(probs, known.labels, coverage, randomised=True),
        "LAC, never empty": fit_lac(probs, known.labels, coverage, include_top=True),
    }
    true, found = new.labels.numpy(), {}
    for name, rule in rules.items():
        sets = rule.sets(fresh, seed=1)
        held = sets[np.arange(len(true)), true]
        by_class = [held[true == k].mean() for k in range(probs.shape[1])]
        found[name] = np.array([held.mean(), sets.sum(axis=1).mean(), *by_class])
    return found


def measure_areas(calibrated: torch.Tensor, labels: torch.Tensor, chosen: SelectionScore) -> dict[str, np.ndarray]:
    """Return AURC and AUGRC (2,) of every score, and of the one that calibration chose."""
    correct = (calibrated.argmax(1) == labels).numpy()
    curves = {score: risk_coverage(score(calibrated), correct) for score in candidate_scores()}
    areas = {score: np.array([curve.aurc, curve.augrc]) for score, curve in curves.items()}
    return {score_name(score): values for score, values in areas.items()} | {"chosen": areas[chosen]}


def score_name(score: SelectionScore) -> str:
    return score.name.replace("_", " ") + (f", p = {score.norm_order:g}" if score.norm_order else "")


def mean_and_spread(values: list[float]) -> str:
    return f"{np.mean(values):.4f} ({np.min(values):.4f} to {np.max(values):.4f})"


def print_sets(found: dict[str, list[np.ndarray]], coverage: float) -> None:
    print(f"\n| sets for a coverage of {coverage:g} | coverage | lowest and highest class, mean | classes in a set |")
    print("|---|---|---|---|")
    for name, rows in found.items():
        stacked = np.stack(rows)
        classes = stacked[:, 2:].mean(axis=0)
        by_class = f"{classes.min():.3f} to {classes.max():.3f}"
        print(f"| {name} | {mean_and_spread(stacked[:, 0])} | {by_class} | {mean_and_spread(stacked[:, 1])} |")


def print_areas(found: dict[str, list[np.ndarray]]) -> None:
    print("\n| selection score | AURC | of that of max probability | AUGRC | of that of max probability |")
    print("|---|---|---|---|---|")
    base = np.stack(found["max probability"]).mean(axis=0)
    for name, rows in found.items():
        aurc, augrc = np.stack(rows).mean(axis=0)
        print(f"| {name} | {aurc:.5f} | {aurc / base[0]:.3f} | {augrc:.5f} | {augrc / base[1]:.3f} |")


def print_precision(wanted: float, kept: dict[str, list[float]], shares: list[float], chosen: list[str]) -> None:
    print(f"\n| precision of {wanted:g} promised | reached | at least {wanted:g} in | 95 % interval |")
    print("|---|---|---|---|")
    for name, values in kept.items():
        good, count = sum(value >= wanted for value in values), len(values)
        if count:
            interval = wilson(good, count)
            held = f"{good} of {count} | {interval.low:.1%} to {interval.high:.1%}"
            print(f"| {name} | {mean_and_spread(values)} | {held} |")
    if shares:
        print(f"\nimages answered: {mean_and_spread(shares)}; chosen scores:")
    print(", ".join(f"{name} {chosen.count(name)}" for name in sorted(set(chosen), key=chosen.count, reverse=True)))


def main() -> None:
    options = parse()
    print(header(torch.device("cpu")), flush=True)
    sets, areas = defaultdict(list), defaultdict(list)
    errors: list[list[float]] = []
    kept: dict[str, list[float]] = {"on the test half": [], "in the population": []}
    shares, chosen = [], []
    whole, generator = predictions(options), np.random.default_rng(options.seed + 1)
    for known, new in resplits(whole, options.resplits, options.seed):
        for name, row in measure_sets(known, new, options.coverage).items():
            sets[name].append(row)
        temperature = choose_temperature(*known)
        found = calibrate(*new, temperature)
        errors.append([found.ece_before, found.ece_after, temperature])
        again = precision_of(redrawn(whole, generator), whole, options.precision)
        if again and again[0] is not None:
            kept["in the population"].append(again[0])
        done = precision_of(known, new, options.precision)
        if done is None:
            continue
        precision, share, score = done
        shares.append(share)
        if precision is not None:
            kept["on the test half"].append(precision)
        chosen.append(score_name(score))
        for name, row in measure_areas(new.logits / temperature, new.labels, score).items():
            areas[name].append(row)
    print_sets(sets, options.coverage)
    print_precision(options.precision, kept, shares, chosen)
    if areas:
        print_areas(areas)
    print("\n| calibration error (ECE, 15 bins) | |\n|---|---|")
    for name, column in zip(("before the temperature", "after", "temperature"), zip(*errors, strict=True), strict=True):
        print(f"| {name} | {mean_and_spread(list(column))} |")
    if options.json:
        document = {"sets": {name: np.stack(rows).tolist() for name, rows in sets.items()}, "precision": kept}
        document["areas"] = {name: np.stack(rows).tolist() for name, rows in areas.items()}
        options.json.write_text(json.dumps(document | {"errors": errors, "answered": shares}, indent=1))


if __name__ == "__main__":
    main()
