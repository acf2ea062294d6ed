"""`vitreous convert`: messages, files and exit codes."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import get_args

import numpy as np
import pytest
import timm
import torch
import transformers
from huggingface_hub import ModelCard
from safetensors.torch import load_file

from vitreous.accelerate.model import create
from vitreous.checkpoint.conversion.writing import FILES
from vitreous.checkpoint.licence import recorded_licence
from vitreous.checkpoint.model_card import card_of
from vitreous.checkpoint.model_file import ModelInfo, load_model, save_model
from vitreous.cli.main import main
from vitreous.cli.verbs.convert import _FORMAT_OF_SUFFIX, _Format
from vitreous.data.config import PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.evaluate.multilabel.rule import LabelRule

SUFFIXES = {suffix for _, suffixes in FILES.values() for suffix in suffixes}
CLASSES = ("daisy", "Löwenzahn", "rose")


@pytest.fixture
def model_file(tmp_path):
    torch.manual_seed(0)
    model = create("mu/8", image_size=48, num_classes=3, head={"zero": False})
    pipeline = EvalPipeline((48, 48), 3, PreprocessConfig(mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4), crop_ratio=0.9))
    save_model(tmp_path / "model.safetensors", model, ModelInfo(CLASSES, pipeline))
    return tmp_path / "model.safetensors"


def convert(*words: object) -> int:
    return main(["convert", *map(str, words)])


def test_round_trip_through_all_families(model_file, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    steps = [("timm", "t"), ("huggingface", "h"), ("torchvision", "v.pth"), ("vitreous", "own.safetensors")]
    source = model_file
    for family, name in steps:
        assert convert(source, tmp_path / name, "--to", family) == 0
        said = capfd.readouterr().err
        assert f"wrote {tmp_path / name}" in said
        assert "read back by vitreous: largest difference 0.0e+00 on an image" in said
        if family != "vitreous":
            assert f"read back by {'transformers' if family == 'huggingface' else family}" in said
        source = tmp_path / name
    before, after = load_file(model_file), load_file(source)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    _, info = load_model(source)
    assert info.classes == CLASSES
    assert info.pipeline.to_dict() == load_model(model_file)[1].pipeline.to_dict()
    assert sorted(os.listdir(tmp_path / "h")) == ["config.json", "model.safetensors", "preprocessor_config.json"]
    assert sorted(os.listdir(tmp_path / "t")) == ["config.json", "model.safetensors"]
    assert json.loads((tmp_path / "v.json").read_text())["classes"] == list(CLASSES)


def test_the_suffix_of_the_target_implies_the_format(model_file, tmp_path, capfd):
    named = {*get_args(_Format)} - {"facebookresearch"}  # a .pth for it needs --to
    read_back = {name: form for name, form in FILES.items() if name in named}
    implied = {suffix: [name for name, (_, suffixes) in read_back.items() if suffix in suffixes] for suffix in SUFFIXES}
    unique = {suffix: names[0] for suffix, names in implied.items() if len(names) == 1}
    assert unique == _FORMAT_OF_SUFFIX
    assert convert(model_file, tmp_path / "v.pth") == 0
    assert "read back by torchvision" in capfd.readouterr().err
    assert convert(model_file, tmp_path / "v.safetensors") == 2
    assert "--to is missing, and the name of DST does not imply a format" in capfd.readouterr().err


def test_an_unsupported_model_leaves_no_files(model_file, tmp_path, capfd):
    before = sorted(os.listdir(tmp_path))
    assert convert(model_file, tmp_path / "g.npz", "--to", "google") == 1
    assert "activation gelu (--activation gelu-tanh takes it)" in capfd.readouterr().err
    assert sorted(os.listdir(tmp_path)) == before
    assert convert(model_file, tmp_path / "g.npz", "--to=google", "--activation=gelu-tanh") == 0
    with np.load(tmp_path / "g.npz") as arrays:
        assert "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel" in arrays


def test_a_failed_round_trip_leaves_no_files(model_file, tmp_path, capfd, monkeypatch):
    from vitreous.checkpoint.conversion import writing

    export = writing.export

    def spoiled(opened, family):
        written = export(opened, family)
        written.tensors["norm.bias"] = written.tensors["norm.bias"] + 1
        return written

    monkeypatch.setattr("vitreous.checkpoint.conversion.convert.export", spoiled)
    before = sorted(os.listdir(tmp_path))
    assert convert(model_file, tmp_path / "t", "--to", "timm") == 1
    assert "do not read back the same: norm.bias; nothing was kept" in capfd.readouterr().err
    assert sorted(os.listdir(tmp_path)) == before


def test_different_logits_leave_no_files(model_file, tmp_path, capfd, monkeypatch):
    from timm.models.vision_transformer import VisionTransformer

    forward = VisionTransformer.forward
    monkeypatch.setattr(VisionTransformer, "forward", lambda self, x: forward(self, x) * 1.001)
    assert convert(model_file, tmp_path / "t", "--to", "timm") == 1
    assert "other logits, read by timm" in capfd.readouterr().err
    assert sorted(os.listdir(tmp_path)) == ["model.safetensors"]


def test_an_existing_destination_is_kept_without_overwrite(model_file, tmp_path, capfd):
    (tmp_path / "t").mkdir()
    (tmp_path / "t/mine").write_text("mine")
    assert convert(model_file, tmp_path / "t", "--to", "timm") == 2
    assert "exists already: --overwrite" in capfd.readouterr().err
    assert convert(model_file, tmp_path / "t", "--to", "timm", "--overwrite") == 2
    assert "holds other files (mine), which --overwrite would delete" in capfd.readouterr().err
    assert (tmp_path / "t/mine").read_text() == "mine"
    (tmp_path / "t/mine").rename(tmp_path / "t/config.json")
    assert convert(model_file, tmp_path / "t", "--to", "timm", "--overwrite") == 0
    assert sorted(os.listdir(tmp_path / "t")) == ["config.json", "model.safetensors"]
    assert sorted(os.listdir(tmp_path)) == ["model.safetensors", "t"]


def test_several_labels_are_several_labels_for_transformers(model_file, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model, info = load_model(model_file)
    fitted = LabelRule((0.3, 0.5, 0.6), (1.0, 2.0, 1.0), (0.0, 0.5, 0.0))
    save_model(model_file, model, dataclasses.replace(info, multilabel=fitted))
    assert convert(model_file, tmp_path / "h", "--to", "huggingface") == 0
    assert "thresholds and calibration of the labels are left out" in capfd.readouterr().err
    theirs = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "h")
    assert theirs.config.problem_type == "multi_label_classification"
    labels = torch.tensor([[1.0, 0.0, 1.0]])
    images = torch.randn(1, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    output = theirs(images, labels=labels)
    assert torch.allclose(output.loss, torch.nn.functional.binary_cross_entropy_with_logits(output.logits, labels))
    assert convert(tmp_path / "h", tmp_path / "back.safetensors", "--to", "vitreous") == 0
    assert "several labels of an image: config.json has problem_type" in capfd.readouterr().err
    assert load_model(tmp_path / "back.safetensors")[1].multilabel == LabelRule.plain(3)
    assert convert(tmp_path / "h", tmp_path / "again", "--to", "huggingface") == 0
    assert "left out" not in capfd.readouterr().err  # nothing was fitted
    first, second = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("h", "again"))
    assert first == second


def test_what_is_left_out_is_not_said_of_a_model_that_is_refused(tmp_path, capfd):
    model = create("mu/8", image_size=48, num_classes=3, position="rope-2d")
    pipeline = EvalPipeline((48, 48), 3, PreprocessConfig(mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4)))
    info = ModelInfo(CLASSES, pipeline, multilabel=LabelRule((0.3, 0.5, 0.6), (1.0, 2.0, 1.0), (0.0, 0.5, 0.0)))
    save_model(tmp_path / "model.safetensors", model, info)
    assert convert(tmp_path / "model.safetensors", tmp_path / "h", "--to", "huggingface") == 1
    said = capfd.readouterr().err
    assert "cannot express this model" in said
    assert "left out" not in said


@pytest.mark.parametrize("licence", ["Apache-2.0", "DINOv3", "MIT AND ImageNet-research", "open: 'rail'"])
def test_a_licence_stays_with_a_converted_folder(licence, model_file, tmp_path, capfd):
    model, info = load_model(model_file)
    save_model(model_file, model, dataclasses.replace(info, provenance={"licence": licence}))
    assert convert(model_file, tmp_path / "t", "--to", "timm") == 0
    assert convert(tmp_path / "t", tmp_path / "back.safetensors", "--to", "vitreous") == 0
    assert recorded_licence(load_model(tmp_path / "back.safetensors")[1].provenance) == licence
    assert f"licence {licence.partition(' AND ')[0]}" in capfd.readouterr().err
    assert convert(model_file, tmp_path / "t", "--to", "timm", "--overwrite") == 0
    card = tmp_path / "t" / "README.md"
    card.write_text(card.read_text() + "Mine.\n")
    assert convert(model_file, tmp_path / "t", "--to", "timm", "--overwrite") == 2
    assert "holds other files (README.md), which --overwrite would delete" in capfd.readouterr().err
    assert card.read_text().endswith("Mine.\n")


def test_the_card_is_read_as_the_hub_reads_it(tmp_path):
    (tmp_path / "README.md").write_text(card_of("Apache-2.0"))
    assert ModelCard.load(tmp_path / "README.md").data.license == "apache-2.0"
    (tmp_path / "README.md").write_text(card_of("DINOv3"))
    data = ModelCard.load(tmp_path / "README.md").data
    assert (data.license, data.license_name) == ("other", "DINOv3")


def test_image_and_patch_size_are_resampled(model_file, tmp_path, capfd):
    words = ("--image-size", "64x80", "--resample", "google", "--patch-size", "16")
    assert convert(model_file, tmp_path / "t", "--to", "timm", *words) == 0
    assert "'method': 'google'" in capfd.readouterr().err
    model = timm.create_model(f"local-dir:{tmp_path / 't'}", pretrained=True)
    assert model.patch_embed.grid_size == (4, 5)
    assert model.patch_embed.patch_size == (16, 16)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("SRC", "out", "--to", "tim"), 2, "Did you mean 'timm'"),
        (("SRC", "out"), 2, "--to is missing"),
        (("SRC", "out.pth", "--to", "google"), 2, "does not fit --to google"),
        (("SRC", "gone/out", "--to", "timm"), 1, "does not exist"),
        (("none.npz", "out", "--to", "timm"), 1, "no model file"),
        (("SRC", "out", "--to", "timm", "--image-size", "big"), 2, "--image-size is 'big'"),
        (("SRC", "out", "--to", "timm", "--image-size", "50"), 2, "not a multiple of patch"),
        (("SRC", "out", "--to", "timm", "--drop", "mask_token"), 1, "no mask_token to drop"),
        (("SRC", "out", "--to", "timm", "--add", "cls_position"), 1, "--add cls_position"),
    ],
)
def test_usage_errors_are_one_line(model_file, tmp_path, capfd, monkeypatch, words, code, said):
    monkeypatch.chdir(tmp_path)
    assert convert(*(model_file if word == "SRC" else word for word in words)) == code
    error = capfd.readouterr().err
    assert said in error
    assert error.splitlines()[-1].startswith("vitreous: ")
    assert sorted(os.listdir(tmp_path)) == ["model.safetensors"]
