"""The table of pretrained models: its facts against timm's own, and every row through a hub on this machine."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import shutil
from pathlib import Path

import pytest
import timm
import torch
import transformers
from hub_server import COMMIT, serving, without_pauses
from safetensors.torch import load_file
from timm.models import save_for_hf
from torch import nn

from vitreous.checkpoint import hub, pretrained
from vitreous.checkpoint.licence import describe_licence, recorded_licence
from vitreous.checkpoint.locating import locate
from vitreous.checkpoint.opening import OpenOptions, open_with_details
from vitreous.checkpoint.pretrained import LICENCES, ROWS, Row, find_hub_id, find_row
from vitreous.errors import CheckpointError
from vitreous.model.config import pair

OF_TIMM = [row for row in ROWS if row.hub_id.startswith("timm/")]
NOISE = torch.randn(1 << 20, generator=torch.Generator().manual_seed(0)) * 0.02


def entry(row: Row) -> str:
    return row.hub_id.removeprefix("timm/").partition(".")[0]


def filled(model: nn.Module) -> nn.Module:
    """Allocate a model of the meta device and fill it with numbers; the initialisation of large ones takes seconds."""
    model = model.to_empty(device="cpu")
    for tensor in (*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())):
        flat = tensor.data.view(-1)
        flat.copy_(NOISE.repeat(-(-flat.numel() // NOISE.numel()))[: flat.numel()])
    return model


def publish(row: Row, folder: Path, depth: int = 1) -> None:
    """Write a row's files as the hub has them: real widths and layout, random weights."""
    if row.hub_id.startswith("timm/"):
        tag = row.hub_id.partition(".")[2]
        classes = {"augreg_in21k": 21843} if tag == "augreg_in21k" else {}
        arguments = {"depth": depth} | ({"num_classes": n} if (n := classes.get(tag)) else {})
        if "ft_in1k" in tag:
            arguments["num_classes"] = 1000
        with torch.device("meta"):
            model = timm.create_model(entry(row), **arguments)
        save_for_hf(filled(model), folder, model_args=arguments, safe_serialization=row.file.endswith("safetensors"))
    else:
        with torch.device("meta"):
            model = HUGGING_FACE[row.name](depth)
        filled(model).save_pretrained(folder, safe_serialization=True)
        if row.file == "pytorch_model.bin":
            torch.save(load_file(folder / "model.safetensors"), folder / row.file)
            (folder / "model.safetensors").unlink()
    (folder / "README.md").write_text("---\nlicense: other\n---\n# A card\n")


def clip(depth: int) -> nn.Module:
    text = transformers.CLIPTextConfig(num_hidden_layers=1, vocab_size=100, bos_token_id=1, eos_token_id=2)
    vision = transformers.CLIPVisionConfig(num_hidden_layers=depth, patch_size=16)
    return transformers.CLIPModel(transformers.CLIPConfig(text_config=text.to_dict(), vision_config=vision.to_dict()))


def mae(depth: int) -> nn.Module:
    return transformers.ViTMAEForPreTraining(
        transformers.ViTMAEConfig(num_hidden_layers=depth, decoder_num_hidden_layers=1, decoder_hidden_size=64,
                                  decoder_intermediate_size=64)
    )  # fmt: skip


def dinov3(depth: int) -> nn.Module:
    size = {"hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 6, "num_hidden_layers": depth}
    return transformers.DINOv3ViTModel(transformers.DINOv3ViTConfig(**size, num_register_tokens=4, key_bias=False))


HUGGING_FACE = {"clip-b": clip, "mae-b": mae, "dinov3-s": dinov3}


def at_home(monkeypatch: pytest.MonkeyPatch, url: str, cache: Path) -> None:
    """Point the hub client of this process at a server and an empty cache."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    without_pauses(monkeypatch)


def test_the_table_is_sound():
    assert len(ROWS) >= 15
    assert min(row.parameters for row in ROWS) < 6e6
    assert len({row.name for row in ROWS}) == len({row.hub_id for row in ROWS}) == len(ROWS)
    kinds = [LICENCES[row.licence].permissive for row in ROWS]
    assert kinds == sorted(kinds, reverse=True)  # Apache and MIT first
    for row in ROWS:
        assert find_row(row.name) is row
        assert find_hub_id(f"hf-hub:{row.full_id}") is row
        assert hub.HUB_ID.fullmatch(row.full_id)
        assert re.fullmatch("[0-9a-f]{40}", row.revision) or row.sha256 is not None
        assert row.image_size % row.patch_size == 0
        assert row.source
        assert row.megabytes is None or row.megabytes > 3.9e-6 * row.parameters


@pytest.mark.parametrize("row", OF_TIMM, ids=lambda row: row.name)
def test_shapes_and_licence_are_those_of_timm(row):
    with torch.device("meta"):
        model = timm.create_model(entry(row), num_classes=0)
    assert sum(p.numel() for p in model.parameters()) == row.parameters
    assert (model.embed_dim, len(model.blocks), model.patch_embed.patch_size[0]) == (
        row.width,
        row.depth,
        row.patch_size,
    )
    stated = timm.get_pretrained_cfg(row.hub_id.removeprefix("timm/")).license
    ours = {"apache-2.0": "Apache-2.0", "cc-by-nc-4.0": "CC-BY-NC-4.0", "dinov3-license": "DINOv3"}
    assert stated is None or ours[stated] == row.licence


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_comes_from_a_hub(row, tmp_path, monkeypatch):
    depth = row.depth if row.parameters < 30e6 else 1  # the others would take too long
    publish(row, tmp_path / "hub" / row.hub_id, depth)
    if row.sha256 is not None:
        content = (tmp_path / "hub" / row.hub_id / row.file).read_bytes()
        other = dataclasses.replace(row, sha256=hashlib.sha256(content).hexdigest())
        monkeypatch.setattr(pretrained, "ROWS", tuple(other if each is row else each for each in ROWS))
    with serving(tmp_path / "hub") as server:
        at_home(monkeypatch, server.url, tmp_path / "cache")
        opened = open_with_details(row.name, OpenOptions())
    config = opened.model.config
    assert (config.width, config.depth, pair(config.patch_size)) == (row.width, depth, (row.patch_size,) * 2)
    assert any(row.revision in line for line in server.asked)
    assert recorded_licence(opened.info.provenance) == row.licence  # not what the card says
    assert opened.info.provenance["source"] == row.full_id
    assert opened.info.provenance["commit"] in (row.revision, COMMIT)  # also of a pull request
    assert f"licence {row.licence}: {LICENCES[row.licence].terms}" in opened.reasons
    shutil.rmtree(tmp_path)  # some are 200 MB


def test_a_folder_with_the_name_of_an_owner_hides_no_model_of_the_hub(tmp_path, monkeypatch):
    row = find_row("dinov2-s")
    publish(row, tmp_path / "hub" / row.hub_id)
    shutil.copytree(tmp_path / "hub" / row.hub_id, tmp_path / "hub" / "timm" / "other")
    (tmp_path / "timm").mkdir()
    monkeypatch.chdir(tmp_path)
    with serving(tmp_path / "hub") as server:
        at_home(monkeypatch, server.url, tmp_path / "cache")
        assert locate(row.full_id).commit == row.revision
        for name in (row.hub_id, f"hf://{row.hub_id}", "timm/other@main", "hf://timm/other", "hf-hub:timm/other"):
            assert locate(name).commit == COMMIT
        with pytest.raises(CheckpointError, match=r"On the hub\? Write hf-hub:timm/other"):
            locate("timm/other")
    with pytest.raises(CheckpointError, match="URLs are not fetched"):
        locate("https://timm/other")
    shutil.copytree(tmp_path / "hub" / row.hub_id, tmp_path / row.hub_id)
    assert locate(row.hub_id).commit is None


def test_a_file_that_differs_from_the_table_is_refused_and_removed(tmp_path, monkeypatch):
    row = find_row("clip-b")
    publish(row, tmp_path / "hub" / row.hub_id)
    with serving(tmp_path / "hub") as server:
        at_home(monkeypatch, server.url, tmp_path / "cache")
        with pytest.raises(CheckpointError, match=rf"the table's is {row.sha256[:12]}.*run the command again"):
            hub.fetch(row.full_id)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.stat().st_size > 100_000]


def test_all_licences_that_bind_a_model_are_said():
    records = {"finetuned_from": {"licence": "Apache-2.0"}, "distilled_from": {"licence": "DINOv3"}}
    both = recorded_licence(records)
    assert both == "Apache-2.0 AND DINOv3"
    assert recorded_licence({"finetuned_from": {"licence": both}, "distilled_from": {"licence": "DINOv3"}}) == both
    said = describe_licence(both)
    assert said.startswith("Apache-2.0: commercial use allowed; and DINOv3: Meta's licence")


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ("---\nlicense: mit\n---\n", "MIT"),
        ("---\nlicense: other\nlicense_name: dinov3-license\n---\n", "DINOv3"),
        ("---\ntags: [a]\nlicense: openrail\n---\n", "openrail"),
        ("---\nlicense: [mit]\n---\n", None),
        ("---\n: [\n---\n", None),
        ("# no front matter\nlicense: mit\n", None),
        (None, None),
    ],
)
def test_the_licence_of_other_models_is_that_of_their_card(tmp_path, card, licence):
    model = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=32, num_classes=2)
    save_for_hf(model, tmp_path, model_args={"depth": 1, "img_size": 32, "num_classes": 2}, safe_serialization=True)
    if card is not None:
        (tmp_path / "README.md").write_text(card)
    opened = open_with_details(tmp_path, OpenOptions())
    assert opened.info.provenance.get("licence") == licence
    assert any(reason.startswith("licence") for reason in opened.reasons) == (licence is not None)


@pytest.mark.parametrize(
    ("folder", "licence"),
    [
        ("facebook/vit-mae-huge", "CC-BY-NC-4.0"),
        (f"models--facebook--vit-mae-large/snapshots/{COMMIT}", "CC-BY-NC-4.0"),
        ("someone/vit-mae-large", "MIT"),
    ],
)
def test_mae_of_its_authors_has_their_licence_not_that_of_the_hubs_card(tmp_path, folder, licence):
    arguments = {"depth": 1, "img_size": 32, "num_classes": 2}
    model = timm.create_model("vit_tiny_patch16_224", **arguments)
    save_for_hf(model, tmp_path / folder, model_args=arguments, safe_serialization=True)
    (tmp_path / folder / "README.md").write_text("---\nlicense: mit\n---\n")
    opened = open_with_details(tmp_path / folder, OpenOptions())
    assert opened.info.provenance["licence"] == licence


def test_what_a_licence_means_is_said():
    assert describe_licence("CC-BY-NC-4.0") == "CC-BY-NC-4.0: no commercial use"
    assert "read it" in describe_licence("openrail")
    assert "not stated" in describe_licence(None)


def test_the_command_prints_the_table(vitreous):
    run = vitreous("models", "--pretrained")
    assert run.returncode == 0
    lines = {line.split()[0]: line for line in run.stdout.splitlines() if line.strip()}
    for row in ROWS:
        assert row.hub_id in lines[row.name]
        assert row.licence in lines[row.name]
        assert row.revision[:12] in lines[row.name]
        assert row.source in run.stderr
    wrong = vitreous("models", "--pretrained", "dinov2")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "Did you mean 'dinov2-s'?" in wrong.stderr
    assert vitreous("models", "--pretrained", "--num-classes", "3").returncode == 2
