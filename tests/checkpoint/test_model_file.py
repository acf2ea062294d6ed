"""The model file: saved models are restored exactly, and anything else is rejected with a reason."""

import json
import math
import os
import pickle
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from safetensors.torch import load_file, save_file

from process_limits import files_of_at_most, peak_memory
from vitreous.accelerate.model import build
from vitreous.checkpoint.model_file import ModelInfo, load_model, recalibrate, save_model
from vitreous.data.config import PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import CheckpointError, ConfigError, OutputError
from vitreous.evaluate.trust.abstention import AbstentionRule
from vitreous.evaluate.trust.conformal import ConformalSets
from vitreous.evaluate.trust.selective import SelectionScore
from vitreous.model.config import PARTS, ViTConfig
from vitreous.model.vit import VisionTransformer

SMALL = ViTConfig(image_size=16, patch_size=4, num_classes=3, width=16, depth=2, heads=2, mlp_dim=32)
PIPELINE = EvalPipeline((16, 16), 3, PreprocessConfig(mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.1)))


def info(**changes) -> ModelInfo:
    return replace(ModelInfo(classes=("cat", "dog", "eel"), pipeline=PIPELINE), **changes)


def model_of(config: ViTConfig) -> VisionTransformer:
    """Return a model without weights of zero or one, so that a lost tensor changes the output."""
    torch.manual_seed(0)
    model = build(config)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn_like(value) * 0.1)
    for name, value in model.named_buffers():
        if value.is_floating_point():
            value.add_(torch.rand_like(value))
        assert value.numel(), name
    return model.eval()


@pytest.fixture
def saved(tmp_path) -> Path:
    path = tmp_path / "model.safetensors"
    save_model(path, model_of(SMALL), info())
    return path


def rewrite(path: Path, change=None, tensors=None) -> None:
    """Save a model file again with changed metadata or tensors."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    document = json.loads(header["__metadata__"]["vitreous"])
    if change:
        change(document)
    save_file(tensors if tensors is not None else load_file(path), path, metadata={"vitreous": json.dumps(document)})


def rejection(path: Path) -> str:
    """Return the error message, which is one line and names the file."""
    with pytest.raises(CheckpointError) as caught:
        load_model(path)
    message = str(caught.value)
    assert "\n" not in message
    assert path.name in message
    return message


OPTIONS = [
    *({"position": kind.kind} for kind in PARTS["position"]),
    *({"pool": p} for p in ("mean", "map", "seq")),
    *({"stem": s} for s in ("linear", "conv")),
    {"attention": {"kind": "axial", "qk_norm": True}, "pool": "mean", "image_size": (16, 32), "patch_size": (4, 8)},
    {"position": "sincos-2d", "pool": "mean", "registers": 3},
    {
        "head": {"kind": "mlp", "hidden": 24},
        "final_norm": "none",
        "block": {"layer_scale": 1e-4},
        "attention": {"qk_norm": True},
    },
    {"image_size": (16, 32), "patch_size": (4, 8), "position": "rope-2d", "attention": {"qkv_bias": False}},
    {
        "pool": "cls",
        "registers": 2,
        "position": {"prefix": "all"},
        "stem": {"activation": "relu"},
        "final_norm": "pooled",
    },
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_logits_are_identical_after_save_and_load(tmp_path, options):
    config = replace(SMALL, **options)
    model = model_of(config)
    size = config.image_size if isinstance(config.image_size, tuple) else (16, 16)
    images = torch.randn(2, 3, *size)
    larger = torch.randn(2, 3, size[0] * 2, size[1] * 2)
    with torch.inference_mode():
        expected, expected_larger = model(images), model(larger)
    save_model(tmp_path / "m.safetensors", model, info(pipeline=replace(PIPELINE, size=size)))
    back, _ = load_model(tmp_path / "m.safetensors")
    assert not back.training
    assert back.config == config
    assert not any(t.is_meta for t in (*back.parameters(), *back.buffers()))
    with torch.inference_mode():
        assert torch.equal(back(images), expected)
        assert torch.equal(back(larger), expected_larger)


def test_a_loaded_model_can_be_trained(saved):
    model, _ = load_model(saved)
    model.train()(torch.randn(2, 3, 16, 16)).sum().backward()
    assert all(p.requires_grad and p.grad is not None for p in model.parameters())


def test_metadata_round_trip(tmp_path):
    said = info(
        classes=("Käfer", "犬", "name with, comma"),
        temperature=1.25,
        provenance={"recipe": {"seed": 3, "betas": (0.9, 0.999)}, "data": {"fingerprint": "ab12"}, "at": Path("x/y")},
        scores={"val": {"top1": torch.tensor(0.5), "f1": float("nan"), "per_class": torch.arange(2).numpy()}},
    )
    save_model(tmp_path / "m.safetensors", model_of(SMALL), said)
    _, back = load_model(tmp_path / "m.safetensors")
    assert (back.classes, back.temperature, back.pipeline) == (said.classes, 1.25, PIPELINE)
    assert back.provenance == {
        "recipe": {"seed": 3, "betas": [0.9, 0.999]},
        "data": {"fingerprint": "ab12"},
        "at": str(Path("x/y")),
    }
    assert back.scores == {"val": {"top1": 0.5, "f1": None, "per_class": [0, 1]}}


def test_half_precision_weights_load_as_float32(saved):
    rewrite(saved, tensors={name: t.to(torch.bfloat16) for name, t in load_file(saved).items()})
    model, _ = load_model(saved)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    name, weight = next(iter(model.named_parameters()))
    assert torch.equal(weight, load_file(saved)[name].float())


def test_run_directory_stands_for_its_model(saved):
    assert load_model(saved.parent)[1].classes == ("cat", "dog", "eel")
    with pytest.raises(
        CheckpointError, match=r"has no model\.safetensors\. The newest one below is '.*model\.safetensors'"
    ):
        load_model(saved.parent.parent)
    with pytest.raises(
        CheckpointError, match=r"no model file .*modle\.safetensors'\. Did you mean '.*model\.safetensors'"
    ):
        load_model(saved.with_name("modle.safetensors"))


def test_pickles_are_rejected_and_never_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'ran'}",)

    for protocol in (0, 2, 4, 5):
        (tmp_path / "m.safetensors").write_bytes(pickle.dumps([Trap(), "x" * 100], protocol=protocol))
        rejection(tmp_path / "m.safetensors")
    torch.save({"weights": torch.zeros(3), "trap": Trap()}, tmp_path / "m.pt")
    assert "zip archive" in rejection(tmp_path / "m.pt")
    assert "pickle" in rejection(tmp_path / "m.pt")
    torch.save({"weights": torch.zeros(3)}, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    assert "Python pickle" in rejection(tmp_path / "old.pth")
    assert not (tmp_path / "ran").exists()


def test_other_formats_are_named(tmp_path):
    path = tmp_path / "m.safetensors"
    for content, reason in (
        (b"", "empty"),
        (b"abc", "only 3 bytes"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b"\xff\xd8\xff\xe0" + bytes(1000), "is an image (JPEG), not a model"),
        (b"\xff\xd9\xff\xe0" + bytes(1000), "header claims"),
        (struct.pack("<Q", 2**63) + b"{}", "header claims"),
        (struct.pack("<Q", 4) + b"nope", "header is unreadable"),
        (struct.pack("<Q", 2) + b"[]", "header is unreadable"),
        (struct.pack("<Q", 50_000) + b"[" * 50_000, "header is unreadable"),
    ):
        path.write_bytes(content)
        assert reason in rejection(path), content[:20]


def test_truncated_and_extended_files_are_rejected(saved):
    whole = saved.read_bytes()
    for length in (9, 200, len(whole) // 2, len(whole) - 1):
        saved.write_bytes(whole[:length])
        rejection(saved)
    saved.write_bytes(whole[:-1])
    assert f"{len(whole) - 1:,} bytes found, {len(whole):,} expected" in rejection(saved)
    saved.write_bytes(whole + b"x")
    rejection(saved)


def test_flipped_bits_are_detected(saved):
    whole = saved.read_bytes()
    weights = 8 + int.from_bytes(whole[:8], "little")
    random = Random(0)
    places = [random.randrange(weights) for _ in range(60)] + [random.randrange(weights, len(whole)) for _ in range(20)]
    for place in places:
        spoiled = bytearray(whole)
        spoiled[place] ^= 1 << random.randrange(8)
        saved.write_bytes(spoiled)
        message = rejection(saved)
        assert place < weights or "its SHA-256 differs" in message
    saved.write_bytes(whole)
    load_model(saved)


def test_file_of_another_program_is_named(tmp_path):
    save_file({"w": torch.zeros(2)}, tmp_path / "m.safetensors", metadata={"format": "pt"})
    error = rejection(tmp_path / "m.safetensors")
    assert "of another program: its metadata has format, and no 'vitreous' entry" in error


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: d.update(format_version=4), "format version 4, expected 1 to 3: it needs a newer vitreous"),
        (lambda d: d.update(format_version="1"), "format version '1', expected 1"),
        (lambda d: d.update(format_version=True), "format version True, expected 1"),
        (lambda d: d.pop("format_version"), "format version None, expected 1"),
        (lambda d: d["model"].update(colour=1, smell=2), "unknown field 'colour'; unknown field 'smell'"),
        (lambda d: d["model"].update(width="16", heads=2.0), "width is '16'; heads is 2.0"),
        (lambda d: d["model"].update(pool={"kind": "max"}), "pool is 'max'"),
        (lambda d: d["model"].update(width=15), "width 15 is not a multiple of heads 2"),
        (lambda d: d["model"].update(width=32), "has shape"),
        (lambda d: d["model"].update(depth=3), "weights of 2 blocks, expected depth 3"),
        (lambda d: d["model"].update(registers=1), "reg_token is missing"),
        (lambda d: d["model"].update(pool={"kind": "mean"}), "cls_token is unexpected"),
        (lambda d: d.update(classes=["a", "b"]), "names 2 classes, expected 3"),
        (lambda d: d.update(classes=["a", "b", "a"]), "occur twice: a"),
        (lambda d: d.update(classes=["a", "b", 3]), "names"),
        (lambda d: d.update(temperature=0), "temperature is 0"),
        (lambda d: d.update(temperature="hot"), "temperature missing or of the wrong type"),
        (lambda d: d.pop("pipeline"), "pipeline missing or of the wrong type"),
        (lambda d: d["pipeline"].update(smell=1), "smell"),
        (lambda d: d["pipeline"].update(channels=1, mean=[0.5], std=[0.5]), "1 channels"),
        (lambda d: d["pipeline"].update(size=[10**9, 10**9]), "1e+09 x 1e+09 pixels"),
        (lambda d: d["pipeline"].update(crop_ratio=1e-9), "the limit is 16,384 per side"),
    ],
)
def test_misfits_state_found_and_expected(saved, change, reason):
    rewrite(saved, change)
    assert reason in rejection(saved)


def test_all_problems_with_weights_are_one_error(saved):
    tensors = load_file(saved)
    tensors["extra"] = torch.zeros(2)
    del tensors["norm.bias"]
    tensors["head.bias"] = torch.zeros(4)
    tensors["head.weight"] = torch.zeros(3, 16, dtype=torch.int64)
    rewrite(saved, tensors=tensors)
    message = rejection(saved)
    for part in (
        "norm.bias is missing",
        "extra is unexpected",
        "head.bias has shape [4], expected [3]",
        "head.weight holds I64, expected float32",
    ):
        assert part in message
    rewrite(saved, tensors={name: tensor for name, tensor in tensors.items() if "blocks" in name})
    assert "; and " in rejection(saved)


@pytest.mark.parametrize(
    "claim", [{"width": 2 * 10**9}, {"depth": 10**9}, {"mlp_dim": 10**12}, {"mlp_dim": 10**30}, {"registers": 10**10}]
)
def test_claimed_sizes_cost_neither_memory_nor_time(saved, claim):
    rewrite(saved, lambda document: document["model"].update(claim))
    start = time.monotonic()
    with peak_memory() as memory:
        rejection(saved)
    assert time.monotonic() - start < 5
    assert memory.grown < 100_000 << 10


def test_invalid_models_cannot_be_saved(tmp_path):
    with pytest.raises(ConfigError, match="2 classes are named, the model has 3 outputs"):
        save_model(tmp_path / "m.safetensors", model_of(SMALL), info(classes=("a", "b")))
    with pytest.raises(ConfigError, match="no mean and std"):
        save_model(
            tmp_path / "m.safetensors", model_of(SMALL), info(pipeline=EvalPipeline((16, 16), 3, PreprocessConfig()))
        )
    with pytest.raises(ConfigError, match="temperature is nan"):
        info(temperature=math.nan)
    assert list(tmp_path.iterdir()) == []


def test_unwritable_paths_are_named(tmp_path):
    with pytest.raises(OutputError, match=r"cannot write '.*gone.m\.safetensors': the folder '.*gone' does not exist"):
        save_model(tmp_path / "gone" / "m.safetensors", model_of(SMALL), info())
    with pytest.raises(OutputError, match="it is a folder"):
        save_model(tmp_path, model_of(SMALL), info())


def test_full_disk_keeps_the_old_file(saved):
    old = saved.read_bytes()
    with files_of_at_most(2000), pytest.raises(OutputError) as caught:
        save_model(saved, model_of(SMALL), info())
    assert str(caught.value).startswith(f"cannot write '{saved}': ")
    assert "File too large" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert saved.read_bytes() == old
    assert [file.name for file in saved.parent.iterdir()] == ["model.safetensors"]


def test_links_and_permissions_are_kept(saved):
    link = saved.with_name("link.safetensors")
    link.symlink_to(saved.name)
    os.chmod(saved, 0o600)
    save_model(link, model_of(replace(SMALL, registers=1)), info())
    assert link.is_symlink()
    assert load_model(saved)[0].config.registers == 1
    assert saved.stat().st_mode & 0o777 == 0o600


def test_run_state_points_to_the_model_file(tmp_path):
    from vitreous.predictor import load
    from vitreous.runs.state_file import write_state

    for name in ("last.ckpt", "previous.ckpt", "renamed.safetensors", "renamed.pth"):
        write_state(tmp_path / name, {"epoch": 1, "weights": {"w": torch.zeros(3)}})
        with pytest.raises(CheckpointError, match=r"is the state of a run, .* give the run's model.safetensors"):
            load(tmp_path / name)
    (tmp_path / "model.safetensors").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=rf"is the state of a run.*give '{tmp_path}/model.safetensors'"):
        load(tmp_path / "last.ckpt")


ABSTENTION = AbstentionRule(SelectionScore("max_logit_p_norm", 3.0), 0.25, 0.95, 0.95, 0.8, 0.97)
CONFORMAL = ConformalSets("lac", 0.9, (0.4, 0.5, 0.6), 3, include_top=True, fallback=(1,))


def test_thresholds_are_read_back(tmp_path):
    path = tmp_path / "m.safetensors"
    both = {"abstention": ABSTENTION, "conformal": CONFORMAL}
    for rules in ({}, {"abstention": ABSTENTION}, {"conformal": CONFORMAL}, both):
        save_model(path, model_of(SMALL), info(**rules))
        _, back = load_model(path)
        assert (back.abstention, back.conformal) == (rules.get("abstention"), rules.get("conformal"))
    assert back.without_thresholds() == info()


@pytest.mark.parametrize(
    ("entry", "change", "named"),
    [
        ("abstention", {"threshold": math.nan}, "threshold"),
        ("abstention", {"threshold": math.inf}, "threshold"),
        ("abstention", {"threshold": "0.5"}, "threshold"),
        ("abstention", {"required_precision": 1.5}, "required_precision"),
        ("abstention", {"coverage": True}, "coverage"),
        ("abstention", {"score": {"name": "confidence", "norm_order": 0.0}}, "name is 'confidence'"),
        ("abstention", {"score": {"name": "margin", "norm_order": 3.0}}, "norm_order"),
        ("abstention", {"score": None}, "SelectionScore"),
        ("abstention", {"treshold": 0.1}, "treshold"),
        ("conformal", {"method": "aps"}, "method is 'aps'"),
        ("conformal", {"thresholds": [0.1, math.nan, 0.2]}, "thresholds"),
        ("conformal", {"thresholds": [0.1, 0.2]}, "thresholds"),
        ("conformal", {"thresholds": {}}, "thresholds"),
        ("conformal", {"coverage": 1}, "coverage"),
        ("conformal", {"classes": 4, "thresholds": [0.5]}, "classes"),
        ("conformal", {"classes": 10**30, "thresholds": [0.5]}, "classes"),
        ("conformal", {"fallback": ["cat"]}, "fallback"),
        ("conformal", {"randomised": 1}, "randomised"),
    ],
    ids=str,
)
def test_damaged_thresholds_are_rejected_by_name(tmp_path, entry, change, named):
    path = tmp_path / "m.safetensors"
    save_model(path, model_of(SMALL), info(abstention=ABSTENTION, conformal=CONFORMAL))
    rewrite(path, lambda document: document[entry].update(change))
    message = rejection(path)
    assert entry in message
    assert named in message


@pytest.mark.parametrize("entry", ["abstention", "conformal"])
def test_incomplete_thresholds_are_rejected(tmp_path, entry):
    path = tmp_path / "m.safetensors"
    save_model(path, model_of(SMALL), info(abstention=ABSTENTION, conformal=CONFORMAL))
    content = path.read_bytes()
    for value in (None, [], "0.5", {}):
        path.write_bytes(content)
        rewrite(path, lambda document, value=value: document.update({entry: value}))
        assert entry in rejection(path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_recalibrated_file_differs_in_its_calibration_only(tmp_path, dtype):
    path, out = tmp_path / "m.safetensors", tmp_path / "again.safetensors"
    said = info(provenance={"seed": 3}, scores={"val": {"top1": 0.5}}, abstention=ABSTENTION)
    save_model(path, model_of(SMALL).to(dtype), said)
    recalibrate(path, out, info(temperature=1.5, conformal=CONFORMAL), {"images": 7})
    before, after = load_file(path), load_file(out)
    assert before.keys() == after.keys()
    assert all(after[name].dtype == dtype and torch.equal(before[name], after[name]) for name in before)
    _, back = load_model(out)  # the checksum is new
    expected = replace(said, abstention=None, conformal=CONFORMAL, temperature=1.5)
    assert back == replace(expected, provenance={"seed": 3, "calibration": {"images": 7}})
    recalibrate(out, out, back.without_thresholds(), {})
    assert load_model(out)[1].conformal is None


def test_opening_a_model_does_not_import_the_compiler():
    """Drawing weights on the meta device did, for 1.4 s of every command."""
    code = (
        "import sys\nfrom vitreous.checkpoint.model_file import build_on_meta\n"
        "from vitreous.model.sizes import config_of\n"
        "model = build_on_meta(config_of('Ti/16'))\nassert all(each.is_meta for each in model.parameters())\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
