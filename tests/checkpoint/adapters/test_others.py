"""Networks that are no plain Vision Transformers are refused by what they are."""

from __future__ import annotations

import json

import pytest
import timm
from safetensors.torch import save_file

from vitreous.checkpoint.opening import open_checkpoint
from vitreous.errors import CheckpointError


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("swin_tiny_patch4_window7_224", "attends within windows that shift"),
        ("xcit_nano_12_p16_224", "across channels"),
        ("convnext_atto", "without attention"),
    ],
)
def test_a_network_of_timm_is_named(tmp_path, name, said):
    save_file(timm.create_model(name).state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"architecture": name}))
    with pytest.raises(
        CheckpointError, match=f"is no plain Vision Transformer: config.json says {name}, which .*{said}"
    ):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "kind",
    [
        *("swin", "hiera", "yolos", "convnextv2", "dpt", "videomae", "owlv2", "eomt_dinov3", "vilt", "bit", "sam2"),
        *("xclip", "dab-detr", "grounding-dino"),
    ],
)
def test_a_network_of_transformers_is_named(tmp_path, kind):
    import torch

    save_file({"embeddings.norm.weight": torch.ones(4)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(CheckpointError, match=f"config.json says {kind}, which "):
        open_checkpoint(tmp_path)
