"""Google's .npz files: every layout is written back bit for bit, and timm's loader gives the same logits."""

from __future__ import annotations

import json

import numpy as np
import pytest
import timm
import torch
from google_files import FLAX, RELEASED, google, save, stacked
from reference_models import BOUND, difference, random_images

from vitreous.checkpoint.conversion.convert import convert
from vitreous.checkpoint.opening import OpenOptions, open_checkpoint, open_with_details
from vitreous.errors import CheckpointError

TOP = "pos_embedding"
LAYOUTS = {
    "released": (google(), ""),
    "released with pre_logits": (google(representation=48), ""),
    "released without a head": (google(classes=0), ""),
    "flax": (google(names=FLAX), ""),
    "flax under opt/target": (google(names=FLAX), "opt/target/"),
    "mean": (google(cls=False), ""),
    "positions in the encoder": (google(names=FLAX, position="Transformer/pos_embedding"), ""),
    "big_vision token": (google(names=FLAX, position=TOP, own_position=False), "params/"),
    "big_vision mean": (google(names=FLAX, position=TOP, cls=False, representation=64), "params/"),
    "big_vision map": (google(names=FLAX, position=TOP, cls=False, pool="MAPHead_0/"), "params/"),
    "big_vision old map": (google(names=FLAX, position=TOP, cls=False, pool=""), ""),
    "big_vision scan": (stacked(google(names=FLAX, position=TOP, cls=False, pool="MAPHead_0/"), 2), "params/"),
    "big_vision fixed positions": (google(names=FLAX, position="", cls=False, side=28), "params/"),
    "hybrid": (google(stages=(2, 1, 2), patch=1, side=4), ""),
    "hybrid of the paper": (google(stages=(1, 1, 1), patch=1, side=4, norm_rank=4, representation=64), ""),
    "hybrid without stages": (google(stages=(), patch=8, side=2), ""),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_round_trip_is_exact(tmp_path, name):
    tree, prefix = LAYOUTS[name]
    source = save(tmp_path / "source.npz", tree, prefix)
    convert(source, tmp_path / "own.safetensors", "vitreous")
    convert(tmp_path / "own.safetensors", tmp_path / "back.npz", "google")
    with np.load(source) as before, np.load(tmp_path / "back.npz") as after:
        assert set(before) == set(after)
        for key in before:
            assert before[key].dtype == after[key].dtype
            np.testing.assert_array_equal(before[key], after[key])


def timm_model(file, **arguments):
    """Return timm's model with Google's activation, loaded by timm's own reader of these files."""
    base = {"img_size": 48, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 2, "mlp_ratio": 2.0}
    base |= {"num_classes": 7, "act_layer": "gelu_tanh"}
    model = timm.create_model("vit_base_patch16_224", **{**base, **arguments}).eval()
    model.load_pretrained(str(file))
    return model


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("released", {}),
        ("mean", {"class_token": False, "global_pool": "avg", "fc_norm": False}),
        ("big_vision token", {"no_embed_class": True}),
        ("big_vision map", {"class_token": False, "global_pool": "map"}),
    ],
)
def test_logits_equal_timm_with_tanh_gelu(tmp_path, name, arguments):
    tree, prefix = LAYOUTS[name]
    file = save(tmp_path / "source.npz", tree, prefix)
    ours, _ = open_checkpoint(file)
    images = random_images(2, 48)
    witness = timm_model(file, **arguments)
    with torch.inference_mode():
        assert difference(witness(images), ours(images)) <= BOUND


def test_flax_names_give_the_same_model(tmp_path):
    renamed = google()
    for name in list(renamed):
        for old, new in zip(RELEASED, FLAX, strict=True):
            if f"/{old}/" in name:
                renamed[name.replace(f"/{old}/", f"/{new}/")] = renamed.pop(name)
                break
    one, _ = open_checkpoint(save(tmp_path / "released.npz", google()))
    two, _ = open_checkpoint(save(tmp_path / "flax.npz", renamed))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_hybrid_converted_to_timm(tmp_path):
    tree = google(stages=(3, 4, 9), patch=1, side=2)
    file = save(tmp_path / "R50.npz", tree)
    opened = open_with_details(file, OpenOptions())
    assert opened.model.config.stem.norm == "google"
    assert opened.model.config.patch_size == 16
    done = convert(file, tmp_path / "out", "timm")
    ours, theirs, constants = done.comparisons
    assert max(ours.noise, ours.image) == 0
    assert max(theirs.noise, theirs.image) <= 3e-5
    assert 1e-6 < max(constants.noise, constants.image) < 1e-2  # other epsilons, said and measured
    convert(tmp_path / "out", tmp_path / "back.npz", "google")
    with np.load(file) as before, np.load(tmp_path / "back.npz") as after:
        assert set(before) == set(after)
        assert all(np.array_equal(before[key], after[key]) for key in before)


def test_activation_is_googles_unless_overridden(tmp_path):
    file = save(tmp_path / "source.npz", google())
    theirs, info = open_checkpoint(file)
    exact, changed = open_checkpoint(file, OpenOptions(activation="gelu"))
    assert (theirs.config.mlp.activation, theirs.config.norm_eps) == ("gelu-tanh", 1e-6)
    assert exact.config.mlp.activation == "gelu"
    assert changed.provenance["activation"] == {"source": "gelu-tanh", "chosen": "gelu"}
    images = random_images(2, 48)
    with torch.inference_mode():
        assert difference(timm_model(file, act_layer="gelu")(images), exact(images)) <= BOUND
        assert 1e-5 < difference(theirs(images), exact(images)) < 5e-2
    assert info.pipeline.config.mean == (0.5, 0.5, 0.5)
    assert info.pipeline.config.fit == "squash"
    with pytest.raises(CheckpointError, match="--activation gelu-tanh"):
        convert(file, tmp_path / "out.npz", "google", OpenOptions(activation="gelu"))


def test_sidecar_has_class_names_and_pipeline(tmp_path):
    file = save(tmp_path / "flowers.npz", google())
    names = list("abcdefg")
    pipeline = {"size": [48, 48], "channels": 3, "fit": "crop", "crop_ratio": 0.9, "interpolation": "bicubic"}
    pipeline |= {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}
    (tmp_path / "flowers.json").write_text(json.dumps({"heads": 2, "classes": names, "pipeline": pipeline}))
    _, info = open_checkpoint(file)
    assert list(info.classes) == names
    assert info.pipeline.to_dict() == pipeline
    convert(file, tmp_path / "out", "google")
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["model.json", "model.npz"]
    _, again = open_checkpoint(tmp_path / "out")
    assert (again.classes, again.pipeline) == (info.classes, info.pipeline)


def test_bfloat16_round_trip(tmp_path):
    tree = {name: array.view(np.uint16)[..., 1::2].copy().view("V2") for name, array in google().items()}
    file = save(tmp_path / "half.npz", tree)
    opened = open_with_details(file, OpenOptions())
    assert all(p.dtype == torch.float32 for p in opened.model.parameters())
    convert(file, tmp_path / "own.safetensors", "vitreous")
    convert(tmp_path / "own.safetensors", tmp_path / "back.npz", "google")
    with np.load(file) as before, np.load(tmp_path / "back.npz") as after:
        assert set(before) == set(after)
        assert all(before[key].tobytes() == after[key].tobytes() for key in before)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t: t.update({"opt/0/mu": np.zeros(3, np.float32)}), "unexpected tensors: opt/0/mu"),
        (lambda t: t.pop("Transformer/encoderblock_1/LayerNorm_2/bias"), "missing tensors: blocks.1.norm2.bias"),
        (lambda t: t.pop(f"Transformer/encoderblock_0/{RELEASED[1]}/key/kernel"), "does not fit"),
        (lambda t: t.update({"head/kernel": np.zeros((3, 7), np.float32)}), r"head.weight has shape \[7, 3\]"),
        (lambda t: t.update({"embedding/kernel": np.zeros((3, 7), np.float32)}), "patch_embed.proj.weight"),
        (lambda t: t.update({"embedding/bias": np.full(64, np.nan, np.float32)}), "non-finite"),
        (lambda t: t.pop("Transformer/encoder_norm/scale"), "no known family"),
    ],
)
def test_misfits_are_one_clear_error(tmp_path, spoil, message):
    tree = google()
    spoil(tree)
    with pytest.raises(CheckpointError, match=message) as caught:
        open_checkpoint(save(tmp_path / "bad.npz", tree))
    assert "\n" not in str(caught.value)


def test_drop_leaves_out_named_tensors(tmp_path):
    file = save(tmp_path / "train.npz", google() | {"opt/0/mu": np.zeros(3, np.float32), "step": np.array(7)})
    model, _ = open_checkpoint(file, OpenOptions(drop=("opt", "step")))
    assert model.config.num_classes == 7
    with pytest.raises(CheckpointError, match="nothing called optimiser"):
        open_checkpoint(file, OpenOptions(drop=("opt", "step", "optimiser")))
