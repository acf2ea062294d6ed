"""What int8 costs a trained model: accuracy, calibration error and size of its OpenVINO graph before and after.

    python benchmarks/accuracy/int8.py runs/cifar10-1 cifar10 --data-dir ~/data
    python benchmarks/accuracy/int8.py runs/flowers-1 flowers

Calibrates on training images. Settings and layers are chosen on val, and the table is of test. Of data without test,
one half of val chooses, and the tables are of the other half and of both.

The rows are the float graph in float32, the same in the fastest precision of this CPU, and the int8 graph.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from measuring import MIB, header
from vitreous.cli.work.evaluating.scoring import images_of, labels_by_name, open_data
from vitreous.data.images.reading import read_image
from vitreous.engines import openvino_engine
from vitreous.evaluate.trust.calibration import expected_calibration_error
from vitreous.export.quantisation.quantise import MAX_DROP, quantise
from vitreous.export.quantisation.running import Top1, logits_of
from vitreous.machine.openvino_package import import_openvino
from vitreous.predictor import Classifier, load

openvino = import_openvino()

BATCH = 64
Labelled = tuple[list[np.ndarray], np.ndarray]  # batches of normalised images (B, C, H, W), and all labels (n,)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--data-dir")
    parser.add_argument("--calibration", type=int, default=300, help="training images to calibrate on")
    parser.add_argument("--max-drop", type=float, default=MAX_DROP, help="points")
    parser.add_argument("--most", type=int, help="images of each split that are used, for a quick trial")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def labelled(classifier: Classifier, data: object, name: str, most: int | None) -> Labelled:
    """Return the images of a split as the model takes them; `most` of them are spread over the split."""
    split = data.splits[name]
    labels, images = labels_by_name(classifier.classes, data, split).numpy(), images_of(split)
    every = np.linspace(0, len(images) - 1, min(most or len(images), len(images))).astype(int)
    batches = []
    for start in range(0, len(every), BATCH):
        pixels = [classifier.pipeline.pixels(read_image(images[index])) for index in every[start : start + BATCH]]
        batch = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous()
        batches.append(classifier.pipeline.normalise(batch).numpy())
    return batches, labels[every]


def splits_of(
    classifier: Classifier, data: object, options: argparse.Namespace
) -> tuple[Labelled, dict[str, Labelled]]:
    """Return what chooses, and what the tables are of, by name."""
    val = labelled(classifier, data, "val", options.most)
    if "test" in data.splits:
        return val, {"test": labelled(classifier, data, "test", options.most)}
    images, labels = np.concatenate(val[0]), val[1]
    halves = [(np.array_split(images[k::2], -(-len(images[k::2]) // BATCH)), labels[k::2]) for k in (0, 1)]
    return halves[0], {"the other half of val": halves[1], "val": val}


def graph_of(classifier: Classifier, folder: Path) -> openvino.Model:
    height, width = classifier.pipeline.size
    with torch.no_grad():
        classifier.model(torch.zeros(2, classifier.pipeline.channels, height, width))  # caches position tables
    openvino_engine.convert(classifier.model, (height, width), folder)
    return openvino.Core().read_model(folder / "graph.xml")


def size_of(graph: openvino.Model, folder: Path) -> float:
    """Return the MiB of the files of a graph."""
    openvino.save_model(graph, folder / "sized.xml", compress_to_fp16=False)
    return sum((folder / f"sized.{ending}").stat().st_size for ending in ("xml", "bin")) / MIB


def main() -> None:
    options = parse()
    print(header(torch.device("cpu"), ("torch", "openvino", "nncf")), flush=True)
    classifier = load(options.model, "cpu", engine="torch", precision="float32")
    data = open_data(classifier.info, options.data, options.data_dir, None)
    choosing, tables = splits_of(classifier, data, options)
    calibration = labelled(classifier, data, "train", options.calibration)[0]
    weights = {name: value.numpy() for name, value in classifier.model.state_dict().items()}
    with tempfile.TemporaryDirectory() as name:
        graph, start = graph_of(classifier, Path(name)), time.perf_counter()
        found = quantise(graph, calibration, Top1(*choosing), options.max_drop, print, weights=weights)
        seconds = time.perf_counter() - start
        sizes = [size_of(each, Path(name)) for each in (graph, found.graph)]
    print(f"\n{seconds:.0f} s; {len(found.restored)} of {found.units} groups of layers went back to float")
    document = found.to_dict() | {"seconds": seconds, "mib": sizes, "tables": {}}
    ways = (("float32", graph, "float32", 0), ("fastest float", graph, "fastest", 0), ("int8", found.graph, None, 1))
    for split, (batches, labels) in tables.items():
        print(f"\n| {split}, {len(labels):,} images | top-1 | loss, points | ECE | other label | MiB |")
        print("|---|---|---|---|---|---|")
        expected, rows = logits_of(graph, batches), {}
        for way, model, precision, which in ways:
            logits = expected if way == "float32" else logits_of(model, batches, precision)
            top1, base = ((each.argmax(1) == labels).mean() for each in (logits, expected))
            probabilities = torch.from_numpy(logits).div(classifier.info.temperature).softmax(1)
            ece = expected_calibration_error(probabilities, torch.from_numpy(labels))
            other = int((logits.argmax(1) != expected.argmax(1)).sum())
            rows[way] = {"top1": float(top1), "ece": float(ece), "other": other}
            loss = 100 * (base - top1)
            print(
                f"| {way} | {top1:.2%} | {loss:.2f} | {100 * ece:.1f} points | {other} | {sizes[which]:.1f} |",
                flush=True,
            )
        document["tables"][split] = rows
    if options.json:
        options.json.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
