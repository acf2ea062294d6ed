"""The page of a model with several labels in Chromium: each label with its probability, and those that are given."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from driving import choose, results, visit
from PIL import Image
from small import CLASSES, model_and_info

from browser import browser, static_host
from vitreous.checkpoint.model_file import save_model
from vitreous.cli.main import main
from vitreous.evaluate.multilabel.rule import LabelRule
from vitreous.predictor import Classifier

K = len(CLASSES)


def test_labels_and_thresholds_are_those_of_python(tmp_path: Path) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    model, info = model_and_info()
    rule = LabelRule((0.5, 0.4, 0.6, 0.55, 0.3, 0.9), (0.5,) * K, (0.1,) * K)
    plain = {"temperature": 1.0, "abstention": None, "conformal": None, "scores": {"test": {"mean_ap": 0.75}}}
    info = dataclasses.replace(info, **plain, multilabel=rule)
    save_model(tmp_path / "m.safetensors", model, info)
    paths, rng = [tmp_path / f"{n}.png" for n in range(6)], np.random.default_rng(0)
    for path in paths:
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(path)
    assert main(["export", str(tmp_path / "m.safetensors"), str(tmp_path / "site"), "--to", "web"]) == 0
    (tmp_path / "profile").mkdir()
    expected = Classifier(model, info, "cpu", engine="torch").predict(list(map(str, paths)), top_k=K)
    with static_host(tmp_path / "site") as url, browser(tmp_path / "profile") as view:
        view.view(1400, "light")
        visit(view, url)
        assert view.js("document.getElementById('model-score').innerText") == "mAP 75.0 % on the test images"
        choose(view, *paths)
        shown = results(view, len(paths))
        last = view.js(
            "[...document.querySelectorAll('#results > li')].map(card =>"
            " [...card.querySelectorAll('tbody tr')].map(row => row.cells[3].innerText))"
        )
        assert view.complaints == []
    assert len({each.labels for each in expected}) > 2
    for each, marks, found in zip(shown, last, expected, strict=True):
        assert each["label"] == (", ".join(found.labels) or "No label")
        assert [name for name, _ in each["top"]] == [name for name, _ in found.top]
        for (_, text), (_, probability) in zip(each["top"], found.top, strict=True):
            assert float(text.strip("%< ")) / 100 == pytest.approx(probability, abs=0.01)
        thresholds = dict(zip(CLASSES, rule.thresholds, strict=True))
        expected_marks = [
            f"{'given, ≥' if name in found.labels else '<'} {100 * thresholds[name]:.1f} %" for name, _ in found.top
        ]
        assert marks == expected_marks
