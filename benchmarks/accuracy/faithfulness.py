"""How faithful the class maps of a trained model are, on images that it did not train on.

SaCo with 10 groups, deletion and insertion for each method, random maps beside them, and the rank correlation of each
map with that of the same model after the last half of its blocks is drawn anew.

    python benchmarks/accuracy/faithfulness.py runs/flowers-1 photos/ --images 200
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from measuring import header
from vitreous.cli.work.evaluating.scoring import choose_split, open_data
from vitreous.inspection.explain import map_method
from vitreous.inspection.faithfulness.randomisation import randomised, rank_correlation
from vitreous.inspection.faithfulness.table import faithfulness_table
from vitreous.predictor import load

METHODS = ("gradient-attention", "legrad", "rollout", "attention", "grad-cam", "integrated-gradients", "occlusion")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--data-dir")
    parser.add_argument("--split", default="val")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--groups", type=int, default=10)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def maps_of(model: torch.nn.Module, name: str, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the maps (N, h, w) of a method, computed in batches of 16."""
    method = map_method(name)
    batches = zip(images.split(16), targets.split(16), strict=True)
    return torch.cat([method(model, few, wanted).values.detach() for few, wanted in batches])


def main() -> None:
    options = parse()
    classifier = load(options.model, engine="torch")
    model, pipeline, temperature = classifier.model.eval(), classifier.info.pipeline, classifier.info.temperature
    data = open_data(classifier.info, options.data, options.data_dir, options.split)
    _, split = choose_split(data, options.split)
    order = np.random.default_rng(0).permutation(len(split))[: options.images]
    images = torch.stack([pipeline(split.image(int(index))) for index in order])

    def predict(batch: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return (model(batch) / temperature).softmax(1)

    targets = torch.cat([predict(few).argmax(1) for few in images.split(64)])
    print(header(torch.device("cpu")), flush=True)
    maps, correlations = {}, {}
    other = randomised(model)
    for name in options.methods:
        start = time.perf_counter()
        maps[name] = maps_of(model, name, images, targets)
        seconds = time.perf_counter() - start
        correlations[name] = float(np.nanmean(rank_correlation(maps[name], maps_of(other, name, images, targets))))
        print(f"{name}: {1000 * seconds / len(images):.1f} ms per image", flush=True)
    rows = faithfulness_table(predict, images, targets, maps, groups=options.groups)
    print("| method | SaCo | 95 % interval | deletion | insertion | after randomisation | verdict |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        interval = f"{row.saco.low:.3f} to {row.saco.high:.3f}"
        after = f"{correlations[row.method]:.2f}" if row.method in correlations else ""
        areas = f"{row.deletion.value:.3f} | {row.insertion.value:.3f}"
        print(f"| {row.method} | {row.saco.value:.3f} | {interval} | {areas} | {after} | {row.verdict} |")
    if options.json:
        found = [{"method": row.method, "saco": row.saco.value, "verdict": row.verdict} for row in rows]
        options.json.write_text(json.dumps({"rows": found, "after_randomisation": correlations}, indent=1))


if __name__ == "__main__":
    main()
