"""timm's other classes of Vision Transformers: equal outputs, also at other sizes, and files written back exactly."""

from __future__ import annotations

import pytest
import timm
import torch
from reference_models import BOUND, difference, random_images
from reference_models import randomise as randomise_plainly
from safetensors.torch import load_file
from timm.models import save_for_hf

from vitreous.checkpoint.adapters.timm.entries import entry_arguments, refusal
from vitreous.checkpoint.conversion.convert import convert
from vitreous.checkpoint.opening import open_checkpoint
from vitreous.errors import CheckpointError

SMALL = {"depth": 2, "embed_dim": 64, "num_heads": 2}
PATCH_16, PATCH_14 = SMALL | {"img_size": 64}, SMALL | {"img_size": 56}
MODELS = {  # entry point, arguments
    "CLIP": ("vit_base_patch16_clip_224", PATCH_16),
    "CLIP with quick GELU": ("vit_base_patch16_clip_quickgelu_224", PATCH_16),
    "EVA": ("eva_giant_patch14_224", PATCH_14),
    "EVA-02": ("eva02_tiny_patch14_224", PATCH_14),
    "EVA-02, matrices apart": ("eva02_base_patch16_clip_224", PATCH_16),
    "EVA-02, norms behind": ("eva02_enormous_patch14_clip_224", PATCH_14),
    "DINOv3": ("vit_small_patch16_dinov3_qkvb", PATCH_16),
    "DINOv3 without biases, gated": ("vit_huge_plus_patch16_dinov3", PATCH_16),
    "Perception Encoder": ("vit_pe_core_tiny_patch16_384", PATCH_16 | {"num_heads": 4}),
    "Perception Encoder, spatial": ("vit_pe_spatial_tiny_patch16_512", PATCH_16),
    "RoPE": ("vit_small_patch16_rope_224", PATCH_16),
    "RoPE beside learned positions": ("vit_small_patch16_rope_ape_224", PATCH_16),
    "RoPE, learned": ("vit_small_patch16_rope_mixed_224", PATCH_16),
    "RoPE, registers": ("vit_medium_patch16_rope_reg1_gap_256", PATCH_16),
    "BEiT": ("beit_base_patch16_224", PATCH_16),
    "BEiT 3": ("beit3_base_patch16_224", PATCH_16),
    "relative": ("vit_relpos_base_patch16_cls_224", PATCH_16),
    "relative, shared": ("vit_srelpos_small_patch16_224", PATCH_16),
    "relative, norms behind": ("vit_relpos_small_patch16_rpn_224", PATCH_16),
    "norms behind": ("vit_base_patch16_rpn_224", PATCH_16),
    "parallel": ("vit_base_patch16_xp_224", PATCH_16),
    "parallel with biases": ("vit_pwee_patch16_reg1_gap_256", PATCH_16),
    "RMSNorm": ("test_vit4", PATCH_16),
    "DINOv2 giant": ("vit_giant_patch14_dinov2", PATCH_14 | {"embed_dim": 96}),
    "DeiT, distilled": ("deit_tiny_distilled_patch16_224", PATCH_16),
    "NaFlexViT": ("naflexvit_base_patch16_gap", SMALL),
    "NaFlexViT of SigLIP 2": ("naflexvit_base_patch16_siglip", SMALL),
}


def randomise(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model with random tensors; learned frequencies stay near those of their start."""
    frequencies = {name: t.clone() for name, t in model.state_dict().items() if name == "rope.freqs"}
    randomise_plainly(model)
    model.load_state_dict(frequencies, strict=False)
    return model


def saved(folder, entry, arguments):
    model = randomise(timm.create_model(entry, num_classes=5, **arguments))
    save_for_hf(model, folder, model_args=arguments, safe_serialization=True)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_outputs_and_the_way_back(tmp_path, name):
    entry, arguments = MODELS[name]
    theirs = saved(tmp_path / "in", entry, arguments)
    ours, _ = open_checkpoint(tmp_path / "in")
    size, patch = ours.config.image_size, ours.config.patch_size
    images = random_images(2, size)
    with torch.inference_mode():
        assert difference(theirs(images), ours(images)) <= BOUND
    convert(tmp_path / "in", tmp_path / "own.safetensors", "vitreous")
    done = convert(tmp_path / "own.safetensors", tmp_path / "out", "timm")
    assert [each.by.split()[0] for each in done.comparisons] == ["vitreous", "timm"]
    before, after = (load_file(tmp_path / side / "model.safetensors") for side in ("in", "out"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    if not entry.startswith(("beit_", "vit_relpos", "vit_srelpos")):  # whose tables are for one size
        flexible = {} if entry.startswith("naflex") else {"dynamic_img_size": True}
        theirs = timm.create_model(entry, num_classes=5, **arguments, **flexible).eval()
        theirs.load_state_dict(before)
        for other in ((size - patch, size - patch), (size - 2 * patch, size + patch)):
            images = random_images(2, *other)
            with torch.inference_mode():
                assert difference(theirs(images), ours(images)) <= BOUND


def test_patches_that_do_not_tile_the_image_leave_out_its_last_pixels(tmp_path):
    entry, arguments = "vit_so400m_patch14_siglip_gap_384", SMALL | {"img_size": 61}
    theirs = saved(tmp_path / "in", entry, arguments)
    ours, info = open_checkpoint(tmp_path / "in")
    assert ours.config.image_size == 56
    assert info.pipeline.size == (56, 56)
    images = random_images(2, 61)
    with torch.inference_mode():
        assert difference(theirs(images), ours(images[..., :56, :56])) <= BOUND
    convert(tmp_path / "in", tmp_path / "out", "timm")
    before, after = (load_file(tmp_path / side / "model.safetensors") for side in ("in", "out"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("cait_xxs24_224", "mixes its heads"),
        ("samvit_base_patch16", "attention in windows"),
        ("vit_dwee_patch16_reg1_gap_256", "difference of two maps"),
        ("vit_small_patch16_18x2_224", "side by side"),
        ("vit_base_patch16_sapiens2", "fewer heads for keys"),
        ("vit_small_resnet26d_224", "another ResNet"),
        ("vit_base_mci_224", "MobileOne"),
        ("naflexvit_base_patch16_par_gap", "aspect ratio"),
        ("vit_base_patch16_unheard_224", "does not know what 'unheard'"),
    ],
)
def test_what_other_models_are_is_said_in_one_line(entry, reason):
    assert reason in refusal(entry)


def test_every_name_of_a_plain_model_is_known():
    """The table has no row that matches nothing, and no entry of the classes it covers is refused by accident."""
    names = [name for pattern in ("vit_*", "deit*", "flexivit*", "eva*", "beit*") for name in timm.list_models(pattern)]
    refused = [name for name in names if refusal(name)]
    assert not [name for name in refused if "does not know" in refusal(name)]
    assert len(refused) < len(names) / 8


def test_a_refused_model_is_one_clear_error(tmp_path):
    saved(tmp_path, "vit_small_patch16_18x2_224", PATCH_16)
    with pytest.raises(CheckpointError, match="two attentions and two MLPs side by side"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"side by side in each block \(blocks"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "entry", ["eva02_tiny_patch14_224", "vit_pe_spatial_tiny_patch16_512", "vit_small_patch16_rope_224"]
)
def test_rotary_positions_are_not_guessed(tmp_path, entry):
    """No tensor says that there are any, so that a file without config.json must not be read as a model without."""
    saved(tmp_path, entry, PATCH_14 if "14" in entry else PATCH_16)
    (tmp_path / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json"):
        open_checkpoint(tmp_path)


def test_features_of_a_distilled_model_are_both_tokens(tmp_path):
    saved(tmp_path, *MODELS["DeiT, distilled"])
    ours, _ = open_checkpoint(tmp_path)
    images = random_images(2, 64)
    with torch.inference_mode():
        tokens, features = ours(images, "tokens"), ours(images, "features")
    torch.testing.assert_close(features, tokens[:, :2].flatten(1), rtol=1e-5, atol=1e-6)
    assert ours.head.in_features == 2 * ours.config.width


def test_heads_are_those_of_every_entry_point():
    """Heads show in no tensor: where no row of the table has them, they are assumed to have 64 channels."""
    patterns = ("vit_*", "deit*", "flexivit*", "eva*", "beit*", "naflexvit*", "test_vit*")
    wrong = {}
    for entry in sorted({name for pattern in patterns for name in timm.list_models(pattern)}):
        if refusal(entry) is not None:
            continue
        with torch.device("meta"):
            model = timm.create_model(entry, depth=1)
        first = model.blocks[0]
        theirs = getattr(first, "attn", first).num_heads
        width = model.embed_dim
        heads = entry_arguments(entry).get("num_heads") or max(1, width // 64)
        if heads != theirs:
            wrong[entry] = (heads, theirs)
    assert wrong == {}
