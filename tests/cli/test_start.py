"""Where `vitreous train FOLDER` starts: which options and how many images decide it, and what the run says of it."""

import json

import pytest
from PIL import Image

from vitreous.cli.options.start import starts_from_shipped
from vitreous.cli.verbs.train import configure
from vitreous.errors import UsageError


@pytest.fixture
def folder(tmp_path, photographs):
    """Twelve pieces of two photographs, a class each."""
    for label, pixels in zip("ab", photographs, strict=True):
        (tmp_path / "pieces" / label).mkdir(parents=True)
        for n in range(6):
            Image.fromarray(pixels[40 * n : 40 * n + 48, :48]).save(tmp_path / "pieces" / label / f"{n}.png")
    return tmp_path / "pieces"


@pytest.mark.parametrize(
    ("words", "recipe"),
    [
        ([], "start"),
        (["--start", "none"], "folder"),
        (["--start=shipped"], "start"),
        (["--recipe", "folder"], "folder"),
        (["--model", "Ti/16"], "folder"),
        (["--aux", "mae"], "folder"),
        (["--aux", "self-training", "--aux.model", "first"], "start"),
        (["--model.depth", "2"], "folder"),
        (["--model.image_size", "64"], "start"),
        (["--epochs", "3", "--optim.lr", "0.01"], "start"),
    ],
)
def test_options_decide_the_start(folder, words, recipe):
    config, _, _ = configure([str(folder), *words])
    assert config.recipe == recipe
    assert config.tune.source == ("shipped" if recipe == "start" else None)


def test_known_datasets_keep_their_recipes():
    assert configure(["digits"])[0].recipe == "digits"
    assert configure(["digits", "--start", "shipped"])[0].recipe == "start"


def test_many_images_train_from_random_weights(tmp_path):
    manifest = tmp_path / "many.csv"
    manifest.write_text("path,label\n" + "".join(f"{n}.png,{n % 2}\n" for n in range(20_001)))
    for n in range(20_001):
        (tmp_path / f"{n}.png").touch()
    assert not starts_from_shipped(str(manifest), {}, {})
    manifest.write_text("path,label\n" + "".join(f"{n}.png,{n % 2}\n" for n in range(20_000)))
    assert starts_from_shipped(str(manifest), {}, {})


@pytest.mark.parametrize(
    "words", [["--model", "Ti/16"], ["--recipe", "folder"], ["--model.width", "64"], ["--aux", "mae"]]
)
def test_another_model_contradicts_the_start(folder, words):
    with pytest.raises(UsageError, match=r"keeps the model of the backbone: omit " + words[0]):
        configure([str(folder), "--start", "shipped", *words])


def test_a_run_says_what_it_starts_from_and_the_file_keeps_it(vitreous, folder, tmp_path):
    words = ("--epochs", 1, "--model.image_size", 32, "--device", "cpu", "--out", tmp_path / "run")
    run = vitreous("train", folder, *words)
    assert run.returncode == 0, run.stderr
    assert "random weights: --start none" in run.stdout
    assert "licence   ImageNet-research" in run.stdout
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["finetune"]["source"]["name"] == "shipped"
    assert report["finetune"]["source"]["licence"] == "ImageNet-research"
