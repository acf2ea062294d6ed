"""The backbone in the package: small, whole, without a head, with its licence, opened by its name."""

import json
import shutil

import torch
from safetensors import safe_open

from vitreous.accelerate.model import build
from vitreous.checkpoint.licence import recorded_licence
from vitreous.checkpoint.locating import locate
from vitreous.checkpoint.model_file import load_model
from vitreous.checkpoint.opening import OpenOptions, open_with_details
from vitreous.checkpoint.pretrained import LICENCES
from vitreous.checkpoint.shipped import LICENCE, SHIPPED, shipped_file
from vitreous.recipes import recipe


def test_the_file_is_small_and_states_its_origin():
    assert shipped_file().stat().st_size <= 6_000_000
    opened = open_with_details(SHIPPED, OpenOptions())
    assert opened.info.classes == ()
    assert recorded_licence(opened.info.provenance) == LICENCE
    assert not LICENCES[LICENCE].commercial
    provenance = opened.info.provenance
    assert (provenance["recipe"], provenance["classes"]) == ("backbone", 210)
    with safe_open(shipped_file(), "pt") as stored:
        config = json.loads(stored.metadata()["vitreous"])["provenance"]["config"]
        kinds = {stored.get_tensor(name).dtype for name in stored.keys()}  # noqa: SIM118  not a dictionary
    assert config["out"] is None  # nothing of the machine that trained it
    assert kinds == {torch.float16, torch.int64}


def test_it_is_the_model_of_its_recipe_and_has_learned_something():
    model, _ = load_model(shipped_file())
    assert model.config == recipe("backbone").model.with_options({"num_classes": 0})
    torch.manual_seed(0)
    fresh = build(model.config).eval()
    images = torch.rand(4, 3, 64, 64)
    trained, random = (net(images, "features").detach() for net in (model, fresh))
    assert torch.isfinite(trained).all()
    assert (trained - random).abs().max() > 0.1


def test_a_file_of_its_name_takes_precedence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert locate(SHIPPED).file == shipped_file()
    (tmp_path / SHIPPED).mkdir()
    shutil.copy(shipped_file(), tmp_path / SHIPPED / "model.safetensors")
    assert locate(SHIPPED).file.resolve() == tmp_path / SHIPPED / "model.safetensors"
