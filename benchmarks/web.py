"""The page of the web export in a headless Chromium, against Python: predictions, time per image, and size.

    python benchmarks/web.py MODEL FOLDER IMAGES [--count 200] [--json FILE]

MODEL is the model file, FOLDER what `vitreous export MODEL --to web FOLDER` wrote, IMAGES a folder of images. A static
host on this machine serves the page, once as such a host sends it (one thread), and once with the two headers that
allow threads. Time per image is the median, from the image file to its probabilities, decoding included.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "web")]

from driving import choose, results, static_host, visit  # noqa: E402

import vitreous  # noqa: E402
from browser import browser  # noqa: E402

ISOLATED = {"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp"}
CHUNK = 20  # images on the page at a time


def in_browser(folder: Path, images: list[Path], headers: dict[str, str]) -> dict[str, Any]:
    """Classify images on the page; gives probabilities N x K, and milliseconds of the graph and of the whole."""
    rows, graph, whole = [], [], []
    with tempfile.TemporaryDirectory() as profile, static_host(folder, headers) as url, browser(Path(profile)) as view:
        visit(view, url, 120)
        isolated = view.js("crossOriginIsolated")
        for first in range(0, len(images), CHUNK):
            chunk = images[first : first + CHUNK]
            choose(view, *chunk)
            shown = results(view, len(chunk))
            assert all(each["state"] == "done" for each in shown), shown
            found = view.js(
                "[...document.querySelectorAll('#results > li')].map(({result}) => "
                "[[...result.probabilities], result.milliseconds, result.total])"
            )
            for row, one, total in found:
                rows.append(row)
                graph.append(one)
                whole.append(total)
            view.js("document.getElementById('clear').click()")
        complaints = view.complaints
    return {
        "probabilities": np.array(rows),
        "isolated": isolated,
        "graph_ms": statistics.median(graph),
        "whole_ms": statistics.median(whole),
        "complaints": complaints,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("images", type=Path)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    files = sorted(path for path in args.images.rglob("*") if path.suffix.lower() in {".jpg", ".jpeg", ".png", ".webp"})
    images = [files[i] for i in np.linspace(0, len(files) - 1, min(args.count, len(files))).astype(int)]
    classifier = vitreous.load(args.model, engine="torch")
    logits = classifier.logits(images) / classifier.info.temperature
    expected = np.exp(logits - logits.max(1, keepdims=True))
    expected /= expected.sum(1, keepdims=True)

    size = sum(path.stat().st_size for path in args.folder.rglob("*") if path.is_file())
    record: dict[str, Any] = {"images": len(images), "folder_bytes": size, "runs": []}
    print(f"{len(images)} images, {len(classifier.classes)} classes, folder {size / 1e6:.1f} MB")
    for name, headers in (("one thread", {}), ("threads allowed", ISOLATED)):
        found = in_browser(args.folder, images, headers)
        rows = found.pop("probabilities")
        same = int((rows.argmax(1) == expected.argmax(1)).sum())
        found |= {"name": name, "same_top1": same, "largest_difference": float(abs(rows - expected).max())}
        record["runs"].append(found)
        print(
            f"{name}: top-1 equal on {same} of {len(images)}, probabilities within {found['largest_difference']:.1e}; "
            f"{found['graph_ms']:.1f} ms for the graph, {found['whole_ms']:.1f} ms with decoding (median); "
            f"{len(found['complaints'])} console messages"
        )
    if args.json:
        args.json.write_text(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
