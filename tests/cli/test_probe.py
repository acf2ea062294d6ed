"""`vitreous probe`: new classes, the right splits, and the library's scores."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

import vitreous as package
from vitreous.evaluate.features.probes import probe_report


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Use one thread: the matrices are small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def parity(tmp_path) -> Path:
    """Real digits as PNG files in two new classes, even and odd, with splits."""
    data = load_digits()
    for n in range(160):
        folder = tmp_path / "parity" / ("train" if n % 4 else "val") / ("even", "odd")[data.target[n] % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((data.images[n] * 255 / 16).astype(np.uint8)).save(folder / f"{n:03}.png")
    return tmp_path / "parity"


def split_of(model_file: Path, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels of a folder of classes, through the library."""
    files = sorted(folder.rglob("*.png"), key=lambda file: file.relative_to(folder))
    labels = [sorted(os.listdir(folder)).index(file.parent.name) for file in files]
    return package.load(model_file, device="cpu", engine="torch", precision="float32").embed(files), np.asarray(labels)


def test_scores_of_new_classes_equal_the_library_and_scikit_learn(vitreous, model_file, parity, tmp_path):
    run = vitreous(
        "probe", model_file, "parity", "--k=5,1", "--shots", "1,10", "--seeds=3", "--json=p.json", "--device=cpu"
    )
    assert run.returncode == 0, run.stderr
    train, val = (split_of(model_file, parity / name) for name in ("train", "val"))
    document = json.loads((tmp_path / "p.json").read_text())
    expected = probe_report(*train, *val, neighbours=[1, 5], shots=[1, 10], seeds=3)
    assert document["data"]["classes"] == ["even", "odd"]
    assert document["probes"] == json.loads(json.dumps(expected.to_dict()))
    assert document["probes"]["linear"]["chosen_on"] == "a fifth of train"
    nearest = KNeighborsClassifier(1, metric="cosine").fit(*train).score(*val)
    assert document["probes"]["knn"]["scores"][0] == {"k": 1, "accuracy": {"val": nearest}}
    assert "parity: 32 frozen features, 2 classes" in run.stdout
    assert "fitted on train 120, scored on val 40" in run.stdout
    rows = {line.split("  ")[1].strip(): line for line in run.stdout.splitlines() if "%" in line}
    assert f"{nearest:.2%}" in next(line for line in run.stdout.splitlines() if "k 1, temperature 0.07" in line)
    assert "3 draws" in rows["10 shots a class"]
    each = expected.few_shot[1]
    assert f"{each.mean('val'):.2%} ± {100 * each.spread('val'):.2f}" in rows["10 shots a class"]


def test_a_known_dataset_is_scored_on_its_test_split(vitreous, model_file):
    run = vitreous("probe", model_file, "digits", "--shots=none", "--json=-", "--device=cpu")
    assert run.returncode == 0, run.stderr
    probes = json.loads(run.stdout)["probes"]
    assert (probes["judged_on"], probes["linear"]["chosen_on"]) == ("test", "val")
    assert set(probes["pictures"]) == {"train", "val", "test"}
    assert sum(probes["pictures"].values()) == 1797
    assert probes["few_shot"]["scores"] == []
    assert probes["linear"]["accuracy"]["test"] > 0.5  # a random ViT's features; chance is 0.1
    assert "val chose the linear probe's C, so its score there is slightly optimistic; test is untouched" in run.stderr


def test_whitening_and_fixed_l2_equal_the_library(vitreous, model_file, parity, tmp_path):
    words = ("--whiten", "--l2", "1024", "--shots=5", "--seeds=1", "--json=p.json", "--device=cpu")
    assert vitreous("probe", model_file, "parity", *words).returncode == 0
    found = json.loads((tmp_path / "p.json").read_text())["probes"]["few_shot"]
    train, val = (split_of(model_file, parity / name) for name in ("train", "val"))
    (expected,) = probe_report(*train, *val, shots=[5], seeds=1, whiten=True, l2=1024).few_shot
    assert found["whiten"] is True
    assert found["scores"][0]["l2"] == 1024
    assert found["scores"][0]["mean"]["val"] == expected.mean("val")
    assert found["scores"][0]["sd"]["val"] is None


def test_unreadable_images_are_skipped_and_reported(vitreous, model_file, parity):
    (parity / "train/even/bad.png").write_bytes(b"bad")
    run = vitreous("probe", model_file, "parity", "--shots=500", "--seeds=1", "--device=cpu")
    assert run.returncode == 0
    assert "1 file cannot be read and is left out" in run.stderr
    assert "500 shots: classes with fewer train images use all they have: 2 of 2" in run.stderr
    assert "train has 120 images: a larger k is reduced to that" in run.stderr


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--shots", "1,x"), 2, "--shots is '1,x', it must be whole numbers of at least 1, such as 1,5,10"),
        (("--k", "0"), 2, "--k is '0', it must be whole numbers of at least 1"),
        (("--seeds", "0"), 2, "--seeds is '0', it must be a whole number of at least 1"),
        (("--l2", "-3", "--shots", "1"), 2, "l2 is -3.0, it must be a number above 0"),
        (("--shots=none", "--whiten"), 2, "--seeds, --whiten and --l2 are for few shots, which --shots none skips"),
        (("--shots=none", "--seeds=9"), 2, "--seeds, --whiten and --l2 are for few shots, which --shots none skips"),
        (("--temperature=0",), 2, "temperature is 0.0, it must be a number above 0"),
        (("--device", "quantum"), 2, "device 'quantum' is unknown"),
    ],
)
def test_usage_errors_are_one_line(vitreous, model_file, parity, words, code, message):
    run = vitreous("probe", model_file, parity, *words)
    assert (run.returncode, run.stdout) == (code, "")
    assert message in run.stderr.splitlines()[-1]
    assert "Traceback" not in run.stderr


def test_help_says_which_split_does_what(vitreous, capsys):
    with pytest.raises(SystemExit) as stop:
        vitreous("probe", "--help")
    assert stop.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "fitted on the train split of the data and scored on val, and on test if there is one" in text


def test_photographs_with_a_colour_model(vitreous, flowers, tmp_path):
    torch.manual_seed(0)
    from vitreous.checkpoint.model_file import ModelInfo, save_model
    from vitreous.data.config import PreprocessConfig
    from vitreous.data.preprocess import EvalPipeline

    for split, count in (("train", 12), ("val", 6)):
        for folder in sorted((flowers / split).iterdir()):
            (tmp_path / "few" / split / folder.name).mkdir(parents=True)
            for file in sorted(folder.iterdir())[:count]:
                (tmp_path / "few" / split / folder.name / file.name).symlink_to(file)
    model = package.create("Ti/16", image_size=64, num_classes=2, depth=2)
    pipeline = EvalPipeline((64, 64), 3, PreprocessConfig(mean=(0.5,) * 3, std=(0.25,) * 3))
    save_model(tmp_path / "m.safetensors", model, ModelInfo(("a", "b"), pipeline))
    run = vitreous("probe", "m.safetensors", "few", "--shots=1,10", "--json=p.json", "--device=cpu")
    assert run.returncode == 0, run.stderr
    probes = json.loads((tmp_path / "p.json").read_text())["probes"]
    assert probes["pictures"] == {"train": 60, "val": 30}
    assert (probes["classes"], probes["features"]) == (5, 192)
    assert probes["few_shot"]["scores"][1]["chosen_on"] == "the rest of train"


@pytest.mark.parametrize("with_test", [False, True])
def test_finetune_probes_by_the_same_protocol(vitreous, model_file, parity, tmp_path, with_test):
    if with_test:
        for label in ("even", "odd"):
            (parity / "test" / label).mkdir(parents=True)
            for path in sorted((parity / "train" / label).iterdir())[:15]:
                path.rename(parity / "test" / label / path.name)
    run = vitreous("probe", model_file, "parity", "--shots=none", "--json=p.json", "--device=cpu")
    assert run.returncode == 0, run.stderr
    tuned = vitreous(
        "finetune", "parity", "--from", model_file, "--tune=full", "--steps=1", "--out=tuned", "--device=cpu"
    )
    assert tuned.returncode == 0, tuned.stderr
    alone = json.loads((tmp_path / "p.json").read_text())["probes"]
    first = json.loads((tmp_path / "tuned/report.json").read_text())["finetune"]["probe"]
    assert (first["linear"]["C"], first["linear"]["chosen_on"]) == (alone["linear"]["C"], alone["linear"]["chosen_on"])
    assert first["linear"]["accuracy"]["val"] == alone["linear"]["accuracy"]["val"]
    assert [each["accuracy"]["val"] for each in first["knn"]["scores"]] == [
        each["accuracy"]["val"] for each in alone["knn"]["scores"]
    ]
