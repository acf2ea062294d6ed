"""Hugging Face's models, read and written, compared with transformers."""

from __future__ import annotations

import json

import pytest
import torch
from reference_models import BOUND, difference, random_images, randomise
from safetensors.torch import load_file, save_file
from transformers import (
    AutoImageProcessor,
    Dinov2Config,
    Dinov2ForImageClassification,
    Dinov2Model,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersForImageClassification,
    Dinov2WithRegistersModel,
    PvtConfig,
    PvtModel,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
    ViTModel,
)

from vitreous.checkpoint.conversion.convert import convert
from vitreous.checkpoint.opening import OpenOptions, open_checkpoint, open_with_details
from vitreous.data.images.reading import read_image
from vitreous.errors import CheckpointError

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 48, "patch_size": 8}
VIT = SMALL | {"intermediate_size": 96}
DINO = SMALL | {"mlp_ratio": 2}
LABELS = {0: "Löwe", 1: "crane", 2: "crane", 3: "d"}


def vit(**more):
    config = ViTConfig(**VIT, num_labels=4, id2label=LABELS, **more)
    return ViTForImageClassification(config), lambda result: result.logits


def rectangle():
    config = ViTConfig(**(VIT | {"image_size": [32, 48]}), num_labels=4)
    return ViTForImageClassification(config), lambda result: result.logits


def features(pooler=True, mask=False, **more):
    model = ViTModel(ViTConfig(**VIT, **more), add_pooling_layer=pooler, use_mask_token=mask)
    return model, lambda result: result.pooler_output if pooler else result.last_hidden_state[:, 0]


def dinov2(**more):
    return Dinov2Model(Dinov2Config(**DINO, **more)), lambda result: result.pooler_output


def registers():
    config = Dinov2WithRegistersConfig(**DINO, num_register_tokens=3)
    return Dinov2WithRegistersModel(config), lambda result: result.pooler_output


def classifier(kind, config, **more):
    return kind(config(**DINO, **more, num_labels=3)), lambda result: result.logits


MODELS = {
    "ViT": vit,
    "ViT without biases": lambda: vit(qkv_bias=False),
    "ViT tanh": lambda: vit(hidden_act="gelu_pytorch_tanh", layer_norm_eps=1e-6),
    "ViT gelu_fast": lambda: vit(hidden_act="gelu_fast"),
    "ViT rectangle": rectangle,
    "ViTModel": features,
    "ViTModel with another pooler": lambda: features(pooler_output_size=40, pooler_act="relu"),
    "ViTModel without pooler": lambda: features(pooler=False),
    "ViTModel with mask token": lambda: features(mask=True),
    "DINOv2": dinov2,
    "DINOv2 without mask token": lambda: dinov2(use_mask_token=False),
    "DINOv2 without biases": lambda: dinov2(qkv_bias=False),
    "DINOv2 classifier": lambda: classifier(Dinov2ForImageClassification, Dinov2Config),
    "DINOv2 with registers, classifier": lambda: classifier(
        Dinov2WithRegistersForImageClassification, Dinov2WithRegistersConfig, num_register_tokens=3
    ),
    "DINOv2 with registers": registers,
}


@pytest.mark.parametrize("name", MODELS)
def test_round_trip_and_logits(tmp_path, name):
    theirs, read = MODELS[name]()
    randomise(theirs)
    theirs.save_pretrained(tmp_path / "in")
    size = theirs.config.image_size
    images = random_images(2, *((size, size) if isinstance(size, int) else size))
    ours, info = open_checkpoint(tmp_path / "in")
    with torch.inference_mode():
        assert difference(read(theirs(images)), ours(images)) <= BOUND
    if name == "ViT":
        assert info.classes == ("Löwe", "crane #1", "crane #2", "d")
    convert(tmp_path / "in", tmp_path / "own.safetensors", "vitreous")
    done = convert(tmp_path / "own.safetensors", tmp_path / "out", "huggingface")
    assert [each.by.split()[0] for each in done.comparisons] == ["vitreous", "transformers"]
    before, after = (load_file(tmp_path / side / "model.safetensors") for side in ("in", "out"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    if name == "ViT":
        again = ViTForImageClassification.from_pretrained(tmp_path / "out")
        assert again.config.id2label == LABELS


def test_module_names_of_transformers_5(tmp_path):
    for build in (vit, dinov2):
        theirs, read = build()
        randomise(theirs)
        folder = tmp_path / type(theirs).__name__
        folder.mkdir()
        save_file({name: t.contiguous() for name, t in theirs.state_dict().items()}, folder / "model.safetensors")
        theirs.config.save_pretrained(folder)
        ours, _ = open_checkpoint(folder)
        images = random_images(2, 48)
        with torch.inference_mode():
            assert difference(read(theirs(images)), ours(images)) <= BOUND
        convert(folder, tmp_path / f"{folder.name} again", "huggingface")
        again = load_file(tmp_path / f"{folder.name} again" / "model.safetensors")
        assert again.keys() == theirs.state_dict().keys()


def test_shards_and_pickled_weights(tmp_path):
    theirs, _ = vit()
    randomise(theirs)
    theirs.save_pretrained(tmp_path / "shards", max_shard_size="100KB")
    assert (tmp_path / "shards/model.safetensors.index.json").exists()
    theirs.save_pretrained(tmp_path / "bin")
    state = load_file(tmp_path / "bin/model.safetensors")
    (tmp_path / "bin/model.safetensors").unlink()
    torch.save(state, tmp_path / "bin/pytorch_model.bin")
    images = random_images(2, 48)
    for folder in ("shards", "bin"):
        ours, _ = open_checkpoint(tmp_path / folder)
        with torch.inference_mode():
            assert difference(theirs(images).logits, ours(images)) <= BOUND


@pytest.mark.parametrize(
    "given",
    [
        {"size": {"height": 48, "width": 48}, "resample": 3,
         "image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]},
        {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 56}, "do_center_crop": True,
         "crop_size": {"height": 48, "width": 48}, "resample": 3, "image_mean": [0.4] * 3, "image_std": [0.2] * 3},
    ],
    ids=["squash", "crop"],
)  # fmt: skip
def test_preprocessing_equals_the_image_processor(tmp_path, photos, given):
    theirs, _ = vit()
    theirs.save_pretrained(tmp_path / "in")
    base = ViTImageProcessor().to_dict() | {"do_resize": True, "do_rescale": True, "do_normalize": True}
    document = {k: v for k, v in (base | given).items() if v is not None}
    (tmp_path / "in/preprocessor_config.json").write_text(json.dumps(document))
    convert(tmp_path / "in", tmp_path / "out", "huggingface")
    _, info = open_checkpoint(tmp_path / "in")
    image = read_image(next(path for path in sorted(photos.iterdir()) if "chelsea" in path.name))
    ours = info.pipeline(image)
    for folder in ("in", "out"):
        processor = AutoImageProcessor.from_pretrained(tmp_path / folder, backend="pil")
        theirs_pixels = torch.as_tensor(processor(image, return_tensors="pt")["pixel_values"])[0]
        assert float((ours - theirs_pixels).abs().max()) <= 1e-5


OLD = {"do_resize": True, "do_normalize": True, "resample": 3, "image_mean": [0.4, 0.5, 0.6], "image_std": [0.2] * 3}


@pytest.mark.parametrize(
    "given",
    [
        {"feature_extractor_type": "CLIPFeatureExtractor", "size": 56, "crop_size": 48, "do_center_crop": True},
        {"feature_extractor_type": "CLIPFeatureExtractor", "size": 48, "crop_size": 48, "do_center_crop": True},
        {"image_processor_type": "BitImageProcessor", "size": 64, "crop_size": {"height": 48, "width": 48}},
        {"feature_extractor_type": "DeiTFeatureExtractor", "size": 48, "crop_size": 48, "do_center_crop": True},
        {"feature_extractor_type": "BeitFeatureExtractor", "size": 48, "crop_size": 40, "do_center_crop": False},
        {"feature_extractor_type": "ViTFeatureExtractor", "size": [48, 48]},
        {"size": 48},  # config.json says of which model
        {"image_processor_type": "ViTImageProcessor", "size": 48, "do_normalize": False},
        {"image_processor_type": "ViTImageProcessor", "size": 48, "do_rescale": False,
         "image_mean": [120.0, 110.0, 100.0], "image_std": [60.0] * 3},
        {"image_processor_type": "ViTImageProcessor", "size": 48, "rescale_factor": 1 / 127.5},
    ],
    ids=["CLIP", "CLIP whole", "Bit", "DeiT", "BEiT", "ViT", "no class", "no normalize", "no rescale", "other rescale"],
)  # fmt: skip
def test_old_preprocessing_equals_the_image_processor(tmp_path, photos, given):
    vit()[0].save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(OLD | given))
    image = read_image(next(path for path in sorted(photos.iterdir()) if "chelsea" in path.name))
    ours = open_checkpoint(tmp_path)[1].pipeline(image)
    processor = AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    theirs = torch.as_tensor(processor(image, return_tensors="pt")["pixel_values"])[0]
    assert float((ours - theirs).abs().max()) <= 1e-5


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"size": 56, "crop_size": 48}, "images keep their aspect ratio: DeiTFeatureExtractor squashes them"),
        ({"size": 48, "crop_size": 48, "do_resize": False}, "preprocessor_config.json has do_resize false"),
    ],
)
def test_preprocessing_that_cannot_be_expressed_is_said(tmp_path, given, said):
    vit()[0].save_pretrained(tmp_path)
    document = OLD | {"feature_extractor_type": "DeiTFeatureExtractor"} | given
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(document))
    opened = open_with_details(tmp_path, OpenOptions())
    assert sum(said in reason for reason in opened.reasons) == 1
    assert opened.info.pipeline.config.fit == ("crop" if "do_resize" not in given else "squash")


def test_dinov2_without_classifier(tmp_path):
    theirs = randomise(Dinov2ForImageClassification(Dinov2Config(**DINO, num_labels=3)))
    theirs.save_pretrained(tmp_path / "head")
    images = random_images(2, 48)
    convert(tmp_path / "head", tmp_path / "bare", "huggingface", OpenOptions(drop=("classifier",)))
    again = Dinov2Model.from_pretrained(tmp_path / "bare").eval()
    with torch.inference_mode():
        assert difference(theirs.dinov2(images).pooler_output, again(images).pooler_output) <= BOUND
    for family in ("timm", "google", "torchvision"):
        with pytest.raises(CheckpointError, match="pool cls-mean"):
            convert(tmp_path / "head", tmp_path / f"{family}-out", family)


def test_unsupported_models_are_explained(tmp_path):
    vit()[0].save_pretrained(tmp_path / "new")
    document = json.loads((tmp_path / "new/config.json").read_text()) | {"model_type": "vit_new"}
    (tmp_path / "new/config.json").write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match="of type vit_new; supported are vit"):
        open_checkpoint(tmp_path / "new")
    PvtModel(PvtConfig()).save_pretrained(tmp_path / "pvt")
    with pytest.raises(CheckpointError, match=r"config\.json says pvt, which pools its tokens"):
        open_checkpoint(tmp_path / "pvt")


@pytest.mark.parametrize("size", [{"shortest_edge": 0}, {"shortest_edge": "x"}, {"shortest_edge": 1e999}])
def test_damaged_preprocessor_config_is_one_clear_error(tmp_path, size):
    vit()[0].save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"size": size, "crop_size": 32}))
    with pytest.raises(CheckpointError, match="the configuration beside"):
        open_checkpoint(tmp_path)


def test_missing_bias_is_an_error(tmp_path):
    vit()[0].save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    del state["vit.encoder.layer.0.attention.attention.key.bias"]
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"attention\.query\.bias"):
        open_checkpoint(tmp_path)


def test_additions_must_be_requested(tmp_path):
    import timm

    model = randomise(timm.create_model("vit_small_patch14_reg4_dinov2", img_size=56, depth=1))
    save_file(model.state_dict(), tmp_path / "reg4.safetensors")
    with pytest.raises(CheckpointError, match=r"--add cls_position.*--add mask_token"):
        convert(tmp_path / "reg4.safetensors", tmp_path / "out", "huggingface")
    convert(tmp_path / "reg4.safetensors", tmp_path / "out", "huggingface",
            OpenOptions(add=("cls_position", "mask_token")))  # fmt: skip
    again = Dinov2WithRegistersModel.from_pretrained(tmp_path / "out").eval()
    images = random_images(2, 56)
    with torch.inference_mode():
        assert difference(model(images), again(images).pooler_output) <= BOUND
    convert(tmp_path / "out", tmp_path / "back", "timm", OpenOptions(drop=("cls_position", "mask_token")))
    before, after = load_file(tmp_path / "reg4.safetensors"), load_file(tmp_path / "back/model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
