"""Runs on a GPU: trained, broken off and resumed, out of memory, not finite; and every command on what they write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

import vitreous as package
from vitreous.errors import NonFiniteError
from vitreous.machine.peak_memory import MemoryMeter
from vitreous.model.config import ViTConfig
from vitreous.train.config import OptimConfig
from vitreous.train.loop.module import VitModule

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA GPU"),
    pytest.mark.filterwarnings("ignore:.*script_method. is deprecated:DeprecationWarning"),  # torch 2.11, of itself
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the digits on the GPU, as a user starts it."""
    out = tmp_path_factory.mktemp("cuda") / "run"
    command = [sys.executable, "-m", "vitreous", "train", "digits", "--epochs", "8", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def photos_of_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of PNG files, 20 of each digit."""
    folder, digits = tmp_path_factory.mktemp("digits"), load_digits()
    for number, (pixels, label) in enumerate(zip(digits.images[:200], digits.target, strict=False)):
        (folder / str(label)).mkdir(exist_ok=True)
        image = Image.fromarray((pixels * 15.9).astype("uint8")).convert("RGB").resize((40, 48))
        image.save(folder / str(label) / f"{number}.png")
    return folder


def test_a_run_learns_and_says_where_it_ran(trained: Path) -> None:
    report = json.loads((trained / "report.json").read_text())
    assert report["scores"]["test"]["top1"] > 0.9
    assert report["machine"]["gpu"] == torch.cuda.get_device_name()


def test_a_model_predicts_the_same_on_both_devices(trained: Path) -> None:
    images = [pixels.astype("uint8") * 15 for pixels in load_digits().images[:64]]
    cpu, gpu = (package.load(trained, device=device, precision="float32").predict(images) for device in ("cpu", "cuda"))
    for one, other in zip(cpu, gpu, strict=True):
        assert one.label == other.label
        assert one.probability == pytest.approx(other.probability, abs=1e-4)


@pytest.mark.parametrize("precision", ["bf16", "float32"])
@pytest.mark.parametrize("options", [{}, {"compile": True}, {"accumulate": 4}, {"ema": 0.9}], ids=str)
def test_a_run_of_every_kind_ends(runs, tmp_path, precision, options) -> None:
    result, said = runs.train(runs.config(tmp_path / "run", device="cuda", precision=precision, epochs=4, **options))
    assert result.val.log_loss < 2.3, said


@pytest.mark.parametrize("name", ["adamw", "muon", "sgd"])
def test_a_resumed_run_ends_near_an_undisturbed_one(runs, tmp_path, name) -> None:
    options = {"device": "cuda", "precision": "float32", "optim": OptimConfig(name=name, lr=3e-3), "ema": 0.9}
    whole, _ = runs.train(runs.config(tmp_path / "whole", **options))
    runs.broken_off(runs.config(tmp_path / "run", **options), 4)
    resumed, _ = runs.train(runs.config(tmp_path / "run", **options), resume=True)
    for split in ("val", "test"):
        one, other = (getattr(result, split).log_loss for result in (whole, resumed))
        assert one == pytest.approx(other, abs=0.01)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_a_step_that_is_not_finite_is_kept_for_replay(runs, tmp_path, monkeypatch, vitreous, accumulate) -> None:
    original = VitModule.on_train_start

    def spoiled(self: VitModule) -> None:
        original(self)
        with torch.no_grad():
            self.model.get_parameter("blocks.0.mlp.fc1.weight").fill_(3e38)

    monkeypatch.setattr(VitModule, "on_train_start", spoiled)
    with pytest.raises(NonFiniteError, match="vitreous replay"):
        runs.train(runs.config(tmp_path / "run", device="cuda", accumulate=accumulate, epochs=20))
    assert vitreous("replay", next((tmp_path / "run").glob("*replay*"))).returncode == 0


@pytest.fixture
def little_memory():
    """A GPU of which this process may use 300 MiB more than now."""
    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (300 << 20)) / total)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


def test_a_step_that_does_not_fit_is_split(runs, tmp_path, little_memory) -> None:
    large = ViTConfig(
        image_size=32, patch_size=2, in_channels=1, num_classes=10, width=256, depth=4, heads=4, mlp_dim=1024
    )
    config = runs.config(tmp_path / "run", device="cuda", model=large, epochs=1, batch_size=256)
    result, said = runs.train(config)
    assert "memory" in said
    assert result.val.top1 > 0.05


def test_memory_is_measured() -> None:
    meter = MemoryMeter(torch.device("cuda"))
    before = meter.begin()
    kept = torch.ones(64 << 20, device="cuda")
    assert meter.most() - before >= kept.nbytes
    assert meter.left() > 0


COMMANDS = {
    "start": ("train", "PHOTOS", "--out", "run", "--budget", "40s"),
    "stages": ("finetune", "PHOTOS", "--from", "MODEL", "--out", "tuned", "--budget", "40s"),
    "plan": ("plan", "digits", "--json", "plan.json"),
    "evaluate": ("evaluate", "MODEL", "digits", "--report", "report"),
    "calibrate": ("calibrate", "COPY", "digits", "--precision", "0.9", "--coverage", "0.9"),
    "predict": ("predict", "MODEL", "PHOTOS/3", "--output", "labels.csv"),
    "embed": ("embed", "MODEL", "PHOTOS/3", "-o", "features.npz"),
    "probe": ("probe", "MODEL", "digits", "--shots", "5", "--seeds", "2"),
    "inspect": ("inspect", "MODEL", "PICTURE", "--data", "digits", "--out", "inspected", "--budget", "20s"),
    "select": ("select", "MODEL", "PHOTOS", "-o", "chosen.csv", "--count", "5"),
    "audit": ("audit", "digits", "--model", "MODEL"),
    "export": ("export", "MODEL", "graph.onnx", "--to", "onnx"),
    "torch": ("export", "MODEL", "graph.pt2", "--to", "torch"),
    "full": ("finetune", "digits", "--from", "MODEL", "--tune", "full", "--epochs", "2", "--out", "tuned"),
    "lora": ("finetune", "digits", "--from", "MODEL", "--tune", "lora", "--epochs", "2", "--out", "tuned"),
    "folder": ("train", "PHOTOS", "--start", "none", "--out", "run", "--epochs", "2"),
    "gpu-recipe": ("train", "digits", "--recipe", "cifar10-gpu", "--model.image_size", "16", "--augment.flip", "0",
                   "--epochs", "2", "--out", "run"),
    "teacher": ("train", "digits", "--teacher", "MODEL", "--epochs", "2", "--out", "run"),
    "aux": ("train", "digits", "--aux", "mae", "--epochs", "2", "--out", "run"),
    "cuda:0": ("train", "digits", "--device", "cuda:0", "--epochs", "2", "--out", "run"),
    **{method: ("pretrain", "digits", "--method", method, "--steps", "12", "--out", "run")
       for method in ("mae", "mpp", "visreg", "lejepa", "dino")},
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_ends_well(vitreous, trained, photos_of_digits, tmp_path, name) -> None:
    (tmp_path / "copy.safetensors").write_bytes((trained / "model.safetensors").read_bytes())
    places = {
        "MODEL": str(trained / "model.safetensors"),
        "COPY": str(tmp_path / "copy.safetensors"),
        "PICTURE": str(next((photos_of_digits / "3").iterdir())),
        "PHOTOS": str(photos_of_digits),
    }
    words = [places.get(word, word).replace("PHOTOS", places["PHOTOS"]) for word in COMMANDS[name]]
    if "--budget" in words:  # counts from the start of the process
        command = [sys.executable, "-m", "vitreous", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    else:
        done = vitreous(*words)
    assert done.returncode == 0, done.stdout + done.stderr


def test_one_process_under_torchrun_uses_the_gpu(trained, tmp_path) -> None:
    free = "29571"
    environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free, "RANK": "0", "WORLD_SIZE": "1",
                                "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "test"}  # fmt: skip
    command = [sys.executable, "-m", "vitreous", "train", "digits", "--epochs", "3", "--out", str(tmp_path / "run")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "run" / "report.json").read_text())["machine"]["gpu"]
