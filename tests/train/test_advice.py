"""The advice at the start and end of a run: only if it helps, with commands that can be pasted."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from vitreous.checkpoint.pretrained import find_row
from vitreous.cli.verbs.train import configure
from vitreous.data.sources.opening import open_source
from vitreous.train.advice import few_images, imbalance_note

TINY = (
    *("--model.width=16", "--model.depth=1", "--model.heads=2", "--model.mlp_dim=16", "--model.image_size=32"),
    *("--epochs=1", "--device=cpu"),
)
NAME = "my 'best' photos"


@pytest.fixture(autouse=True)
def online(monkeypatch, tmp_path):
    """A hub with a way to it, and an empty cache; nothing listens there, and advice asks nobody."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return constants


@pytest.fixture
def photographs(flowers: Path, tmp_path: Path):
    """Return a function that creates a folder with the given numbers of photographs of some classes."""

    def chosen(**counts: int) -> Path:
        for label, count in counts.items():
            (tmp_path / NAME / label).mkdir(parents=True)
            for path in sorted((flowers / "train" / label).glob("*.jpg"))[:count]:
                shutil.copy(path, tmp_path / NAME / label / path.name)
        return tmp_path / NAME

    return chosen


def advised(text: str) -> list[str]:
    """Return the commands among the advice."""
    lines = text.splitlines()
    return [line.strip() for line in lines if line.startswith("          ") and line.split()[0] in ("vitreous", "pip")]


def test_fine_tuning_is_advised_for_few_images_and_no_weights_for_balanced_classes(vitreous, photographs):
    photographs(daisy=14, tulips=12)
    done = vitreous("train", NAME, *TINY, "--data.val_fraction=0.3")
    assert done.returncode == 0, done.stderr
    assert "of 2 classes are few for a Vision Transformer from random weights" in done.stdout
    assert "imbalanced" not in done.stdout
    (command,) = advised(done.stdout)
    words = shlex.split(command)
    assert words[:3] == ["vitreous", "finetune", NAME]
    assert "--from" not in words  # the command chooses
    assert vitreous(*words[1:], "--print-config").returncode == 0
    assert "--data.val_fraction=0.3" in words


def test_imbalance_is_noted_at_the_start_and_with_a_command_at_the_end(vitreous, photographs, tmp_path):
    photographs(daisy=40, tulips=6)
    done = vitreous("train", NAME, *TINY, "--select=last", "--optim.lr=1e-5", "--optim.muon_lr=1e-5")
    assert done.returncode == 0, done.stderr
    start, _, end = done.stdout.partition("\nepoch ")
    counts = json.loads((tmp_path / "runs/my-best-photos-1/report.json").read_text())["data"]["images"]
    assert f"\nclasses   imbalanced (daisy {counts['train'] - _of('tulips')}, tulips {_of('tulips')} training" in start
    assert "--class-weights effective or --balanced-sampling" in start
    scores = json.loads((tmp_path / "runs/my-best-photos-1/report.json").read_text())["scores"]["val"]
    assert scores["macro_f1"] < scores["top1"] - 0.05  # untrained: it predicts one class
    command = next(line for line in advised(end) if "--class-weights" in line)
    words = shlex.split(command)
    again = vitreous(*words[1:])
    assert again.returncode == 0, again.stderr
    assert "imbalanced" not in again.stdout
    assert not any("--class-weights" in line for line in advised(again.stdout))
    assert 'class_weights: "effective"' in (tmp_path / "runs/my-best-photos-2/recipe.yaml").read_text()


@pytest.mark.parametrize(
    ("images", "classes", "side", "top1", "tuned", "said"),
    [
        (300, 5, 300, 0.6, False, True),
        (4999, 2, 300, None, False, True),
        (5000, 2, 300, 0.6, False, False),
        (19_900, 100, 300, 0.6, False, True),  # 199 per class
        (50_000, 100, 300, 0.6, False, False),
        (300, 5, 300, 0.97, False, False),  # good already
        (300, 5, 28, 0.6, False, False),  # tiny images, to which pretrained models transfer badly
        (300, 5, 300, 0.6, True, False),  # this run is a fine-tuning
    ],
)
def test_fine_tuning_is_advised_for_few_images_only(images, classes, side, top1, tuned, said):
    data = SimpleNamespace(
        splits={"train": range(images)}, classes=range(classes), median_size=(side, side), several=False
    )
    setup = SimpleNamespace(
        data=data, pretrained=object() if tuned else None, config=configure(["photos", "--start", "none"])[0]
    )
    advice = list(few_images(setup, top1))
    assert bool(advice) == said
    data.several = True
    assert list(map(type, few_images(setup, top1))) == list(map(type, advice))
    assert not advice or f" of {classes} labels are few" in next(iter(few_images(setup, top1)))


def test_offline_fine_tuning_is_advised_from_the_cache_or_the_package(online, monkeypatch, tmp_path):
    monkeypatch.setattr(online, "HF_HUB_OFFLINE", True)
    data = SimpleNamespace(splits={"train": range(300)}, classes=range(5), median_size=(300, 300), several=False)
    setup = SimpleNamespace(data=data, pretrained=None, config=configure(["photos", "--start", "none"])[0])
    said, command = few_images(setup)
    assert "Fine-tuning the small backbone in this package, which saw ImageNet (research use), usually does" in said
    assert command == ["vitreous", "finetune", "photos", "--from", "shipped"]
    begun = SimpleNamespace(data=data, pretrained=object(), config=configure(["photos", "--start", "shipped"])[0])
    assert list(few_images(begun)) == []  # it has nothing else to start from
    row = find_row("dinov2-s")
    kept = tmp_path / "cache" / f"models--{row.hub_id.replace('/', '--')}" / "snapshots" / row.revision
    kept.mkdir(parents=True)
    (kept / row.file).touch()
    assert list(few_images(setup))[-1][-1] == "shipped"  # a download that broke off
    (kept / "config.json").touch()
    assert list(few_images(setup))[-1] == ["vitreous", "finetune", "photos", "--from", "dinov2-s"]


@pytest.mark.parametrize(
    ("counts", "words", "said"),
    [
        ((40, 4), (), True),
        ((40, 0), (), True),
        ((633, 898, 641, 699, 799), (), False),
        ((40, 9), (), False),
        ((40, 4), ("--class-weights=inverse",), False),
        ((40, 4), ("--balanced-sampling",), False),
    ],
)
def test_imbalance_is_noted_if_the_run_does_not_correct_for_it(counts, words, said):
    split = SimpleNamespace(labels=np.repeat(np.arange(len(counts)), counts))
    data = SimpleNamespace(splits={"train": split}, classes=[f"c{n}" for n in range(len(counts))], several=False)
    setup = SimpleNamespace(data=data, config=configure(["photos", *words])[0])
    assert (imbalance_note(setup) is not None) == said


def _of(label: str) -> int:
    """Return the number of training images of a class in the test's folder."""
    data = open_source(configure([NAME])[0].data)
    return int((data.splits["train"].labels == data.classes.index(label)).sum())


def test_a_plan_gives_the_same_advice(vitreous, photographs, monkeypatch):
    monkeypatch.setattr("vitreous.train.planning.trials._SECONDS", 0.1)
    photographs(daisy=40, tulips=6)
    done = vitreous("plan", NAME, *TINY)
    assert done.returncode == 0, done.stderr
    assert "imbalanced" in done.stdout
    assert shlex.split(advised(done.stdout)[0])[:3] == ["vitreous", "finetune", NAME]
