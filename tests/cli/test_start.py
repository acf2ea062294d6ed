"""Where `vitreous train FOLDER` starts: which options and how many images decide it, and what the run says of it."""

import json
import subprocess
import sys

import pytest
from PIL import Image

from vitreous.cli.options.start import starts_from_shipped
from vitreous.cli.verbs.train import configure
from vitreous.errors import ConfigError, UsageError
from vitreous.train.recipe_file import recipe_text


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
        (["--model.block.drop_path", "0.2", "--model.head.zero", "false"], "start"),
        (["--model.attention.qk_norm", "true"], "folder"),
    ],
)
def test_options_decide_the_start(folder, words, recipe):
    config, _, _ = configure([str(folder), *words])
    assert config.recipe == recipe
    assert config.tune.source == ("shipped" if recipe == "start" else None)


def test_random_weights_have_a_second_task_unless_options_say_otherwise(folder):
    words = [str(folder), "--start", "none"]
    assert configure(words)[0].aux.method == "auto"
    assert configure([*words, "--aux", "none"])[0].aux.method == "none"
    assert configure([*words, "--aux.mask", "0.6"])[0].aux.mask == 0.6
    with pytest.raises(ConfigError, match=r"aux\.method is auto, which learns from labelled images alone: set it"):
        configure([*words, "--unlabelled", str(folder)])


def test_known_datasets_keep_their_recipes():
    assert configure(["digits"])[0].recipe == "digits"
    config = configure(["digits", "--start", "shipped"])[0]
    assert (config.recipe, config.augment.flip) == ("start", 0.0)  # a mirrored digit is another one


@pytest.mark.parametrize(
    ("size", "small"), [("64", (0.75,)), ("80", ()), ("144", ()), ("96,128", (0.75,)), ("96,80", ())]
)
def test_any_image_size_that_patches_tile_is_taken(folder, size, small):
    config = configure([str(folder), "--model.image_size", size])[0]
    assert (config.recipe, config.augment.small_first) == ("start", small)


def test_a_recipe_that_starts_from_the_backbone_contradicts_random_weights(folder, tmp_path):
    config = configure([str(folder)])[0]
    (tmp_path / "recipe.yaml").write_text(recipe_text(config))
    stored = ["--config", str(tmp_path / "recipe.yaml")]
    for words, given in (
        (stored, "the recipe start of --config"),
        ([str(folder), "--recipe", "start"], "--recipe start"),
    ):
        with pytest.raises(UsageError, match=f"--start none trains from random weights, but {given} starts"):
            configure([*words, "--start", "none"])
    again = configure([*stored, "--start", "shipped"])[0]
    assert (again.recipe, again.model, again.tune) == ("start", config.model, config.tune)
    with pytest.raises(UsageError, match=r"keeps the model of the backbone: omit --model\.width"):
        configure([*stored, "--start", "shipped", "--model.width", "64"])


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


def test_training_connects_to_nothing(photographs, tmp_path):
    for label, pixels in zip("ab", photographs, strict=True):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for n in range(6):
            part = pixels[20 * n : 20 * n + 240, 30 * n : 30 * n + 240]
            Image.fromarray(part).save(tmp_path / "photos" / label / f"{n}.jpg")
    script = """
import socket, sys
opened = []
def watch(event, arguments):
    if event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        opened.append(event)
    elif event == "socket.connect" and arguments[0].type != socket.SOCK_DGRAM:  # which sends nothing
        opened.append(event)
sys.addaudithook(watch)
from vitreous.cli.main import main
code = main(["train", "photos", "--epochs=1", "--model.image_size=32", "--device=cpu", "--data.workers=0", "--out=run"])
assert not opened, opened
try:
    socket.create_connection(("127.0.0.1", 9)).close()
except OSError:
    pass
assert opened  # the hook sees connections
sys.exit(code)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "model.safetensors").exists()
