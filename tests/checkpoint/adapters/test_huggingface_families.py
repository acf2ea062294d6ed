"""Hugging Face's other vision encoders: equal outputs, also at other sizes, and files that are written back exactly."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from reference_models import BOUND, difference, random_images, randomise
from safetensors.torch import load_file

from vitreous.checkpoint.conversion.convert import convert
from vitreous.checkpoint.conversion.witness import run_huggingface
from vitreous.checkpoint.model_file import load_model
from vitreous.checkpoint.opening import OpenOptions, open_checkpoint, open_with_details
from vitreous.errors import CheckpointError

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "image_size": 48,
    "patch_size": 16,
}
DINOV2 = {key: value for key, value in SMALL.items() if key != "intermediate_size"}
DECODER = {
    "decoder_num_hidden_layers": 1,
    "decoder_hidden_size": 16,
    "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 32,
}
ANY_SIZE = ((32, 32), (32, 64))
FIXED: tuple[tuple[int, int], ...] = ()
MODELS = {  # class, configuration, other sizes that its library computes
    "DeiT": ("DeiTForImageClassification", SMALL, ANY_SIZE),
    "DeiT with a teacher": ("DeiTForImageClassificationWithTeacher", SMALL, ANY_SIZE),
    "DeiT features": ("DeiTModel", SMALL, ANY_SIZE),
    "DINOv2 giant": ("Dinov2Model", {**DINOV2, "use_swiglu_ffn": True}, ANY_SIZE),
    "DINOv2 with registers": ("Dinov2WithRegistersModel", {**DINOV2, "num_register_tokens": 2}, ANY_SIZE),
    "DINOv3": ("DINOv3ViTModel", {**SMALL, "num_register_tokens": 2}, ANY_SIZE),
    "DINOv3 gated": ("DINOv3ViTModel", {**SMALL, "use_gated_mlp": True, "hidden_act": "silu"}, ANY_SIZE),
    "DINOv3 without biases": ("DINOv3ViTModel", {**SMALL, "query_bias": False, "value_bias": False}, ANY_SIZE),
    "SigLIP": ("SiglipVisionModel", SMALL, ANY_SIZE),
    "SigLIP 2": ("Siglip2VisionModel", {**SMALL, "num_patches": 9}, ANY_SIZE),
    "CLIP": ("CLIPVisionModel", SMALL, ANY_SIZE),
    "CLIP projected": ("CLIPVisionModelWithProjection", {**SMALL, "projection_dim": 20}, ANY_SIZE),
    "CLIP classifier": ("CLIPForImageClassification", {"vision_config": SMALL}, FIXED),
    "BEiT": ("BeitModel", {**SMALL, "use_relative_position_bias": True}, ANY_SIZE),
    "BEiT classifier": ("BeitForImageClassification", {**SMALL, "use_relative_position_bias": True}, ANY_SIZE),
    "BEiT shared": (
        "BeitModel",
        {
            **SMALL,
            "use_shared_relative_position_bias": True,
            "use_absolute_position_embeddings": True,
            "use_mean_pooling": False,
        },
        FIXED,
    ),
    "MAE": ("ViTMAEModel", {**SMALL, "mask_ratio": 0.0}, ANY_SIZE),
    "MSN": ("ViTMSNModel", SMALL, ANY_SIZE),
    "MSN classifier": ("ViTMSNForImageClassification", SMALL, ANY_SIZE),
    "I-JEPA": ("IJepaModel", SMALL, ANY_SIZE),
    "I-JEPA classifier": ("IJepaForImageClassification", SMALL, ANY_SIZE),
}


def extra(name):
    """Return what the library's class needs besides a configuration."""
    return {"add_pooling_layer": False} if name == "I-JEPA" else {}


def build(name):
    """Return a randomised model of the library, and other sizes of images that it takes."""
    class_name, arguments, sizes = MODELS[name]
    kind = getattr(transformers, class_name)
    labels = {"num_labels": 3} if "Classification" in class_name else {}
    model = kind(kind.config_class(**arguments, **labels), **extra(name))
    return randomise(model), sizes


@pytest.mark.parametrize("name", MODELS)
def test_outputs_and_the_way_back(tmp_path, name):
    theirs, sizes = build(name)
    theirs.save_pretrained(tmp_path / "in")
    ours, info = open_checkpoint(tmp_path / "in")
    for size in ((48, 48), *sizes):
        images = random_images(2, *size)
        with torch.inference_mode():
            assert difference(run_huggingface(theirs, images), ours(images)) <= BOUND
    assert len(info.classes) == (3 if "Classification" in MODELS[name][0] else 0)
    convert(tmp_path / "in", tmp_path / "own.safetensors", "vitreous")
    done = convert(tmp_path / "own.safetensors", tmp_path / "out", "huggingface")
    assert [each.by.split()[0] for each in done.comparisons] == ["vitreous", "transformers"]
    before, after = (load_file(tmp_path / side / "model.safetensors") for side in ("in", "out"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_the_image_tower_of_a_model_of_images_and_text(tmp_path):
    small = {"vision_config": SMALL, "text_config": {**DINOV2, "intermediate_size": 48, "vocab_size": 50}}
    both = randomise(transformers.CLIPModel(transformers.CLIPConfig(**small, projection_dim=20)))
    both.save_pretrained(tmp_path / "in")
    opened = open_with_details(tmp_path / "in", OpenOptions())
    images = random_images(2, 48)
    with torch.inference_mode():
        tower = both.vision_model(images).pooler_output
        assert difference(both.visual_projection(tower), opened.model(images)) <= BOUND
    assert any("without logit_scale, text_model, text_projection" in reason for reason in opened.reasons)
    convert(tmp_path / "in", tmp_path / "out", "huggingface")
    alone = transformers.CLIPVisionModelWithProjection.from_pretrained(tmp_path / "out").eval()
    with torch.inference_mode():
        assert difference(both.visual_projection(tower), alone(images).image_embeds) <= BOUND


def test_the_image_tower_of_siglip(tmp_path):
    small = {"vision_config": SMALL, "text_config": {**DINOV2, "intermediate_size": 48, "vocab_size": 50}}
    both = randomise(transformers.SiglipModel(transformers.SiglipConfig(**small)))
    both.save_pretrained(tmp_path / "in")
    ours, _ = open_checkpoint(tmp_path / "in")
    images = random_images(2, 48)
    with torch.inference_mode():
        expected = both.vision_model(images).pooler_output
        assert difference(expected, ours(images)) <= BOUND
    convert(tmp_path / "in", tmp_path / "out", "huggingface")
    alone = transformers.SiglipVisionModel.from_pretrained(tmp_path / "out").eval()
    with torch.inference_mode():
        assert difference(expected, alone(images).pooler_output) <= BOUND


def test_patches_that_do_not_tile_the_image_leave_out_its_last_pixels(tmp_path):
    """As in SigLIP's So400m at 384 pixels with patches of 14."""
    theirs = randomise(transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**{**SMALL, "image_size": 54})))
    theirs.save_pretrained(tmp_path / "in")
    opened = open_with_details(tmp_path / "in", OpenOptions())
    assert opened.model.config.image_size == 48
    assert any("of the stated 54 x 54, patches leave out" in reason for reason in opened.reasons)
    images = random_images(2, 54)
    with torch.inference_mode():
        assert difference(theirs(images).pooler_output, opened.model(images[..., :48, :48])) <= BOUND
    convert(tmp_path / "in", tmp_path / "out", "huggingface")
    before, after = (load_file(tmp_path / side / "model.safetensors") for side in ("in", "out"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_a_classifier_that_does_not_read_its_pooling(tmp_path):
    config = transformers.SiglipConfig(vision_config=SMALL, num_labels=3)
    theirs = randomise(transformers.SiglipForImageClassification(config))
    theirs.save_pretrained(tmp_path / "in")
    opened = open_with_details(tmp_path / "in", OpenOptions())
    images = random_images(2, 48)
    with torch.inference_mode():
        assert difference(theirs(images).logits, opened.model(images)) <= BOUND
    assert any("averages the tokens instead" in reason for reason in opened.reasons)
    convert(tmp_path / "in", tmp_path / "out", "huggingface")
    again = transformers.SiglipForImageClassification.from_pretrained(tmp_path / "out").eval()
    with torch.inference_mode():
        assert difference(theirs(images).logits, again(images).logits) <= BOUND


def test_a_decoder_is_dropped(tmp_path):
    config = transformers.ViTMAEConfig(**SMALL, **DECODER, mask_ratio=0.0)
    theirs = randomise(transformers.ViTMAEForPreTraining(config))
    theirs.save_pretrained(tmp_path / "in")
    opened = open_with_details(tmp_path / "in", OpenOptions())
    images = random_images(2, 48)
    with torch.inference_mode():
        assert difference(theirs.vit(images).last_hidden_state[:, 0], opened.model(images)) <= BOUND
    assert any("without decoder" in reason for reason in opened.reasons)
    convert(tmp_path / "in", tmp_path / "out", "huggingface")
    alone = transformers.ViTMAEModel.from_pretrained(tmp_path / "out", mask_ratio=0.0).eval()
    with torch.inference_mode():
        assert difference(alone(images).last_hidden_state[:, 0], opened.model(images)) <= BOUND


def test_a_decoder_is_kept_on_request(tmp_path):
    config = transformers.ViTMAEConfig(**SMALL, **DECODER, mask_ratio=0.0)
    theirs = randomise(transformers.ViTMAEForPreTraining(config))
    theirs.save_pretrained(tmp_path / "in")
    keep = OpenOptions(keep=("decoder",))
    convert(tmp_path / "in", tmp_path / "own.safetensors", "vitreous", keep)
    assert load_model(tmp_path / "own.safetensors")[0].config.num_classes == 0  # every other command reads it too
    convert(tmp_path / "own.safetensors", tmp_path / "out", "huggingface")
    before, after = (load_file(tmp_path / folder / "model.safetensors") for folder in ("in", "out"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    again = transformers.ViTMAEForPreTraining.from_pretrained(tmp_path / "out").eval()
    images, noise = random_images(2, 48), torch.rand(2, 9)
    with torch.inference_mode():
        assert torch.equal(theirs(images, noise=noise).logits, again(images, noise=noise).logits)
    with pytest.raises(CheckpointError, match=r"decoder \(--drop decoder leaves it out\)"):
        convert(tmp_path / "own.safetensors", tmp_path / "timm", "timm")
    resized = open_with_details(tmp_path / "own.safetensors", OpenOptions(image_size=96))
    assert not resized.kept
    assert any("the decoder is left out" in reason for reason in resized.reasons)
    build("MSN")[0].save_pretrained(tmp_path / "msn")
    with pytest.raises(CheckpointError, match="has no decoder that can be kept"):
        open_with_details(tmp_path / "msn", keep)


def test_detectors_and_files_without_their_type_are_refused(tmp_path):
    yolos = transformers.YolosModel(transformers.YolosConfig(**{**SMALL, "image_size": [48, 48]}))
    yolos.save_pretrained(tmp_path / "yolos")
    with pytest.raises(CheckpointError, match="says yolos, which detects objects"):
        open_checkpoint(tmp_path / "yolos")
    build("SigLIP")[0].save_pretrained(tmp_path / "siglip")
    document = json.loads((tmp_path / "siglip/config.json").read_text())
    (tmp_path / "siglip/config.json").write_text(json.dumps(document | {"hidden_act": "mish"}))
    with pytest.raises(CheckpointError, match="activation mish"):
        open_checkpoint(tmp_path / "siglip")


@pytest.mark.parametrize("name", MODELS)
def test_a_config_that_leaves_out_the_defaults(tmp_path, name):
    """Many files on the hub state only what differs from the default of their kind, such as CLIP's quick GELU."""
    theirs, _ = build(name)
    theirs.save_pretrained(tmp_path / "in")
    document = json.loads((tmp_path / "in" / "config.json").read_text())
    short = theirs.config.to_diff_dict() | {key: document[key] for key in ("architectures", "model_type")}
    vision = short.get("vision_config", short)
    if "gated" not in name:  # there it differs from the default
        vision.pop("hidden_act", None)
    (tmp_path / "in" / "config.json").write_text(json.dumps(short))
    again = getattr(transformers, MODELS[name][0]).from_pretrained(tmp_path / "in", **extra(name)).eval()
    ours, _ = open_checkpoint(tmp_path / "in")
    images = random_images(2, 48, 48)
    with torch.inference_mode():
        assert difference(run_huggingface(again, images), ours(images)) <= BOUND


def test_a_distilled_model_is_not_written_without_its_heads(tmp_path):
    build("DeiT with a teacher")[0].save_pretrained(tmp_path / "in")
    with pytest.raises(CheckpointError, match="a distilled model has two heads"):
        convert(tmp_path / "in", tmp_path / "out", "huggingface", OpenOptions(drop=("head",)))
    assert not (tmp_path / "out").exists()


def test_a_changed_activation_is_written(tmp_path):
    build("CLIP")[0].save_pretrained(tmp_path / "in")
    convert(tmp_path / "in", tmp_path / "out", "huggingface", OpenOptions(activation="silu"))
    assert json.loads((tmp_path / "out" / "config.json").read_text())["hidden_act"] == "silu"


@pytest.mark.parametrize("name", ["DINOv2 giant", "DINOv2 with registers"])
def test_dinov2_without_its_config(tmp_path, name):
    theirs, sizes = build(name)
    theirs.save_pretrained(tmp_path)
    (tmp_path / "config.json").unlink()
    ours, _ = open_checkpoint(tmp_path, OpenOptions(heads=2))
    for size in ((48, 48), *sizes):
        images = random_images(2, *size)
        with torch.inference_mode():
            assert difference(run_huggingface(theirs, images), ours(images)) <= BOUND


@pytest.mark.parametrize("name", ["DeiT", "CLIP", "DINOv3", "SigLIP 2"])
def test_another_patch_size_and_grid_are_written(tmp_path, name):
    build(name)[0].save_pretrained(tmp_path / "in")
    done = convert(tmp_path / "in", tmp_path / "out", "huggingface", OpenOptions(image_size=32, patch_size=8))
    assert [each.by.split()[0] for each in done.comparisons] == ["vitreous", "transformers"]
    document = json.loads((tmp_path / "out" / "config.json").read_text())
    assert document["patch_size"] == 8
    assert document.get("num_patches", 16) == 16  # of NaFlex


@pytest.mark.parametrize("name", ["DeiT", "MSN classifier", "I-JEPA classifier", "BEiT classifier"])
def test_a_dropped_head_is_written(tmp_path, name):
    build(name)[0].save_pretrained(tmp_path / "in")
    done = convert(tmp_path / "in", tmp_path / "out", "huggingface", OpenOptions(drop=("head",)))
    assert [each.by.split()[0] for each in done.comparisons] == ["vitreous", "transformers"]
    document = json.loads((tmp_path / "out" / "config.json").read_text())
    assert document["architectures"] == [MODELS[name][0].replace("ForImageClassification", "Model")]
    assert "id2label" not in document


def test_a_mean_that_only_a_classifier_has_keeps_its_head(tmp_path):
    build("CLIP classifier")[0].save_pretrained(tmp_path / "in")
    with pytest.raises(CheckpointError, match="no class for clip that averages the tokens without a classifier"):
        convert(tmp_path / "in", tmp_path / "out", "huggingface", OpenOptions(drop=("head",)))
    assert not (tmp_path / "out").exists()
