"""`vitreous inspect`: what it writes, what it compares, and what it says to wrong requests."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

import vitreous as package
from vitreous.checkpoint.conversion.convert import convert
from vitreous.checkpoint.opening import OpenOptions
from vitreous.cli.main import main
from vitreous.cli.options.map_methods import METHODS
from vitreous.inspection.explain import explain
from vitreous.inspection.maps import MAPS


@pytest.fixture
def digit(digits):
    return sorted(digits.rglob("*.png"))[0]


def test_a_model_alone(vitreous, model_file, tmp_path):
    run = vitreous("inspect", model_file, "--out", "out", "--json", "-", "--device=cpu")
    assert run.returncode == 0, run.stderr
    document = json.loads(run.stdout)
    assert set(document["measures"]) == {"filters", "position_similarity"}
    assert document["images"] == []
    assert document["faithfulness"] is None
    assert "give IMAGES, or --data" in run.stderr
    assert json.loads((tmp_path / "out" / "inspection.json").read_text()) == document
    assert (tmp_path / "out" / "inspection.html").exists()


@pytest.fixture
def backbone(model_file, tmp_path):
    """The model without its head, as `vitreous pretrain` writes one."""
    convert(model_file, tmp_path / "backbone.safetensors", "vitreous", OpenOptions(drop=("head",)))
    return tmp_path / "backbone.safetensors"


def test_a_backbone_without_a_head_is_inspected_too(vitreous, backbone, digits, digit, tmp_path):
    words = ("--data", digits, "--budget=5s", "--register-neurons=4", "--out", "out", "--device=cpu")
    run = vitreous("inspect", backbone, digit, *words)
    assert run.returncode == 0, run.stderr
    assert "The model has no classification head" in run.stderr
    document = json.loads((tmp_path / "out" / "inspection.json").read_text())
    assert document["faithfulness"] is None
    (one,) = document["images"]
    assert one["probabilities"] == []
    assert [(each["method"], each["target"], each["probability"]) for each in one["maps"]] == [("rollout", None, None)]
    alone = explain(package.load(backbone, device="cpu", engine="torch"), digit, method="rollout")
    assert (alone.target, alone.label, alone.logits.size) == (-1, "", 0)
    np.testing.assert_allclose(one["maps"][0]["patches"], alone.patches, rtol=1e-4, atol=1e-6)
    assert one["neighbours"][0]["label"] == digit.parent.name
    assert {"attention_distance", "token_norms", "depth"} <= set(document["measures"])
    page = (tmp_path / "out" / "inspection.html").read_text()
    assert "no classification head" in page
    assert "Most probable classes" not in page
    run = vitreous("inspect", backbone, digit, "--target=three", "--device=cpu")
    assert (run.returncode, run.stderr.count("\n")) == (2, 1)
    assert "the model has no classes" in run.stderr


def test_images_with_labelled_data(vitreous, model_file, digits, digit, tmp_path):
    words = ("--data", digits, "--methods=legrad,occlusion", "--target=three", "--layers=-1", "--budget=5s")
    run = vitreous("inspect", model_file, digit, *words, "--out", "out", "--device=cpu")
    assert run.returncode == 0, run.stderr
    document = json.loads((tmp_path / "out" / "inspection.json").read_text())
    (one,) = document["images"]
    assert [(each["method"], each["target"]) for each in one["maps"]] == [
        (method, "three") for method in ("legrad", "occlusion", "rollout")
    ]
    alone = explain(package.load(model_file, device="cpu", engine="torch"), digit, "three", method="occlusion")
    np.testing.assert_allclose(one["maps"][1]["patches"], alone.patches, rtol=1e-4, atol=1e-6)
    assert one["attention_blocks"] == [1]
    rows = document["faithfulness"]["methods"]
    assert [row["method"] for row in rows] == ["legrad", "occlusion", "attention", "rollout", "random"]
    assert all(10 <= row["images"] <= 60 for row in rows)
    assert set(document["faithfulness"]["randomisation"]) == {"legrad", "occlusion", "attention", "rollout"}
    nearest = one["neighbours"][0]
    assert nearest["similarity"] == pytest.approx(1, abs=1e-6)  # the image itself is in the data
    assert nearest["label"] == digit.parent.name
    depth = document["measures"]["depth"]
    assert len(depth["accuracy"]) == 3
    assert [depth["train_images"], depth["scored_images"]] == [30, 30]  # even and odd rows of one split
    verdicts = {row["method"]: row["verdict"] for row in rows}
    page = (tmp_path / "out" / "inspection.html").read_text()
    for method in ("legrad", "occlusion", "rollout"):
        title = {"legrad": "LeGrad", "occlusion": "Occlusion", "rollout": "Attention rollout"}[method]
        caption = page[page.index(f"<figcaption>{title}") :].split("</figcaption>")[0]
        assert ("no better than random" in caption) == (verdicts[method] == "no better than random")


def test_too_few_images_to_compare_depths_are_reported(vitreous, model_file, digits, tmp_path):
    for path in sorted(digits.rglob("*.png"))[12:]:
        path.unlink()
    run = vitreous("inspect", model_file, "--data", digits, "--budget=5s", "--out", "out", "--device=cpu")
    assert run.returncode == 0, run.stderr
    assert "Accuracy by depth is measured on 6 images only" in run.stderr
    page = (tmp_path / "out" / "inspection.html").read_text()
    assert "Fitted to 6 images, scored on 6 others" in page
    assert "too few to compare depths" in page


def test_enough_images_are_compared_without_data(vitreous, model_file, digits, tmp_path):
    images = sorted(digits.rglob("*.png"))[:10]
    run = vitreous("inspect", model_file, *images, "--out", "out", "--device=cpu")
    assert run.returncode == 0, run.stderr
    document = json.loads((tmp_path / "out" / "inspection.json").read_text())
    assert [row["images"] for row in document["faithfulness"]["methods"]] == [10] * 4
    assert "10 images of the images of this page" in run.stdout


def test_an_unreadable_image_is_skipped(vitreous, model_file, digit, tmp_path):
    (tmp_path / "broken.png").write_bytes(digit.read_bytes()[:40])
    run = vitreous("inspect", model_file, "broken.png", digit, "--out", "out", "--device=cpu")
    assert run.returncode == 1
    assert "vitreous: broken.png: " in run.stderr
    document = json.loads((tmp_path / "out" / "inspection.json").read_text())
    assert [each["path"] for each in document["images"]] == [str(digit)]
    assert [each["path"] for each in document["unreadable"]] == ["broken.png"]
    run = vitreous("inspect", model_file, "broken.png", "--out", "other", "--device=cpu")
    assert run.returncode == 1
    assert "none of the 1 images can be read: broken.png" in run.stderr
    assert not (tmp_path / "other").exists()


def test_nothing_is_overwritten_unasked(vitreous, model_file, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "inspection.html").write_text("mine")
    run = vitreous("inspect", model_file, "--out", "out", "--device=cpu")
    assert run.returncode == 2
    assert "exists already: --overwrite replaces it" in run.stderr
    assert (tmp_path / "out" / "inspection.html").read_text() == "mine"
    assert vitreous("inspect", model_file, "--out", "out", "--overwrite", "--device=cpu").returncode == 0


def test_overwriting_removes_what_an_earlier_inspection_left(vitreous, model_file, digits, tmp_path):
    first, second = sorted(digits.rglob("*.png"))[:2]
    words = ("--out", "out", "--overwrite", "--device=cpu")
    assert vitreous("inspect", model_file, first, second, "--methods=legrad,occlusion", *words).returncode == 0
    out = tmp_path / "out"
    before = {path.name for path in out.iterdir()}
    assert f"02-{second.stem}-occlusion.png" in before
    mine = {"notes.txt", f"01-{first.stem}-mine.png", "03-other-heads.png"}  # not of that inspection
    for name in mine:
        (out / name).write_text("mine")
    assert vitreous("inspect", model_file, first, "--methods=legrad", *words).returncode == 0
    kept = {f"01-{first.stem}-{part}.png" for part in ("legrad", "rollout", "heads", "patch-features")}
    assert {path.name for path in out.iterdir()} == mine | kept | {"inspection.html", "inspection.json", "filters.png"}
    (out / "inspection.json").write_text("[1")  # damaged: nothing but its own files is replaced
    assert vitreous("inspect", model_file, *words).returncode == 0
    assert kept <= {path.name for path in out.iterdir()}


def test_a_file_of_an_earlier_inspection_that_is_an_input_is_not_removed(vitreous, model_file, digit, tmp_path):
    words = ("--out", "out", "--overwrite", "--device=cpu")
    assert vitreous("inspect", model_file, digit, *words).returncode == 0
    image = tmp_path / "out" / f"01-{digit.stem}-heads.png"
    run = vitreous("inspect", model_file, image, *words)
    assert run.returncode == 2
    assert "is an input of this command" in run.stderr
    assert image.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods=legard"], "Did you mean 'legrad'?"),
        (["--target=one"], "--target is the class that maps of images explain: give IMAGES too"),
        (["--register-neurons=10"], "--register-neurons looks for outlier tokens in images: give IMAGES"),
        (["IMAGE", "--register-neurons=-1"], "--register-neurons is '-1', it must be a whole number of at least 0"),
        (["--split=val"], "--split val is a split of DATA: give --data too"),
        (["--budget=30"], "duration '30' has no unit"),
        (["--layers=2"], "--layers has 2, the model has 2 blocks: use -2 to 1"),
        (["IMAGE", "--target=tow"], "the model has no class 'tow'. Did you mean 'two'?"),
        (["IMAGE", "--target=10"], "target is 10, it must be a class name or a number from 0 to 9"),
        (["--occlusion.batch_size=4"], "--occlusion.batch-size has no effect without the method: add occlusion to"),
        (["--rollout.fusion=maximum"], "--rollout.fusion is 'maximum', it must be one of mean, max, min"),
        (["--methods=legrad,legrad"], "--methods names legrad twice"),
        (["--rollout.fusio=max"], "Did you mean '--rollout.fusion'?"),
        (["IMAGE", "--rollout.residual=2"], "rollout: residual is 2.0, it must be in [0, 1]"),
        (["IMAGE", "--methods=attention", "--attention.head=9"], "attention: head is 9, the model has heads 0 to"),
        (["--out=missing/out"], "the folder 'missing' does not exist"),
        (["IMAGE", "--data=DIGITS", "--budget=0.001s"], "allow more time, or compare fewer methods"),
    ],
)
def test_wrong_requests(vitreous, model_file, digits, digit, tmp_path, words, message):
    stands_for = {"IMAGE": str(digit), "--data=DIGITS": f"--data={digits}"}
    run = vitreous("inspect", model_file, *(stands_for.get(word, word) for word in words), "--device=cpu")
    assert run.returncode == (1 if "missing" in words[0] else 2), run.stderr
    assert message in run.stderr
    assert not (tmp_path / "inspection").exists()


def test_the_same_from_python(model_file, digits, digit, tmp_path):
    classifier = package.load(model_file, device="cpu", engine="torch")
    found = package.inspect(classifier, digit, target=3, methods=["grad-cam"], quiet=True)
    assert [each.target for each in found.images[0].maps] == [3, 3]
    assert not list(tmp_path.rglob("inspection.html"))
    with pytest.raises(package.errors.UsageError, match="loaded already: omit device"):
        package.inspect(classifier, digit, device="cpu")


def test_options_of_methods(vitreous, model_file, digit, tmp_path):
    words = ("--methods=rollout,attention,integrated-gradients", "--rollout.fusion", "max", "--rollout.residual=0.25")
    words += ("--attention.layer", "0", "--attention.head=1", "--integrated-gradients.steps", "3")
    run = vitreous("inspect", model_file, digit, *words, "--out", "out", "--device=cpu")
    assert run.returncode == 0, run.stderr
    document = json.loads((tmp_path / "out" / "inspection.json").read_text())
    maps = {each["method"]: each for each in document["images"][0]["maps"]}
    assert list(maps) == ["rollout", "attention", "integrated-gradients"]
    assert maps["rollout"]["options"] == {"residual": 0.25, "fusion": "max"}
    classifier = package.load(model_file, device="cpu", engine="torch")
    for method, options in (
        ("rollout", {"fusion": "max", "residual": 0.25}),
        ("attention", {"layer": 0, "head": 1}),
        ("integrated-gradients", {"steps": 3}),
    ):
        alone = explain(classifier, digit, method=method, **options)
        default = explain(classifier, digit, method=method)
        np.testing.assert_allclose(maps[method]["patches"], alone.patches, rtol=1e-4, atol=1e-6)
        assert abs(alone.patches - default.patches).max() > 1e-4, method
    page = (tmp_path / "out" / "inspection.html").read_text()
    for text in ("heads by their max, identity with weight 0.25", "Attention of head 1 of block 0", "3 steps"):
        assert text in page
    same = package.inspect(
        classifier, digit, methods=["rollout"], rollout={"fusion": "max", "residual": 0.25}, quiet=True
    )
    np.testing.assert_array_equal(same.images[0].maps[0].patches, np.float32(maps["rollout"]["patches"]))


def test_a_model_without_outliers_needs_no_register(vitreous, model_file, digits, digit, tmp_path):
    words = ("--data", digits, "--register-neurons", "10", "--budget=5s", "--out", "out", "--device=cpu")
    run = vitreous("inspect", model_file, digit, *words)
    assert run.returncode == 0, run.stderr
    document = json.loads((tmp_path / "out" / "inspection.json").read_text())
    found = document["measures"]["test_time_register"]
    assert found["neurons"] == []
    assert found["scored_images"] == 60
    assert found["accuracy_before"] == found["accuracy_after"]
    assert document["images"][0]["maps_with_register"] == []
    page = (tmp_path / "out" / "inspection.html").read_text()
    assert "is an outlier: the model needs no register, and is left as it is" in page
    assert "With a test-time register" not in page


def test_help_teaches_the_options_of_methods(capsys):
    def help_text(*words):
        with pytest.raises(SystemExit, match=r"^0$"):
            main(["inspect", "--help", *words])
        return " ".join(capsys.readouterr().out.split())

    assert "`--help methods` has their options" in help_text()
    text = help_text("methods")
    assert "--rollout.fusion mean|max|min" in text
    assert "Weight of the identity in each layer, in [0, 1]. [0.5]" in text
    assert "--grad-cam.layer N" in text
    assert "rollout: attention multiplied over layers" in text
    assert [method.kind for method in MAPS] == list(METHODS)


def test_probes_are_fitted_to_all_classes_of_a_large_folder(vitreous, model_file, tmp_path):
    """The first images of a folder are of its first class; so few of many images must be drawn at random."""
    data, classes = load_digits(), package.load(model_file).classes
    for n in range(len(data.images)):
        folder = tmp_path / "photos" / classes[data.target[n]]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((data.images[n] * 255 / 16).astype(np.uint8)).save(folder / f"{n:04}.png")
    run = vitreous("inspect", model_file, "--data", "photos", "--budget=1s", "--out", "out", "--json=-", "--device=cpu")
    assert run.returncode == 0, run.stderr
    depth = json.loads(run.stdout)["measures"]["depth"]
    assert depth["train_images"] >= 100
    assert depth["accuracy"][-1] > 0.3, depth["accuracy"]
