"""A GPU computes what the CPU does: models, maps, augmentation and optimisers, to the rounding of float64."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor

import vitreous
from vit_reference import small_config, stir
from vitreous.accelerate.model import accelerate, build
from vitreous.checkpoint.model_file import ModelInfo
from vitreous.data.augment.pipeline import BatchAugment
from vitreous.data.config import AugmentConfig, PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.engines.torch_engine import no_tf32
from vitreous.inspection.maps import MAPS
from vitreous.model.config import PARTS
from vitreous.model.vit import VisionTransformer
from vitreous.predictor import Classifier
from vitreous.train.config import OptimConfig
from vitreous.train.loop.optim import build_optimizer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA GPU")

CUDA = torch.device("cuda")
CASES: list[dict[str, object]] = [
    {},
    *({"position": kind.kind} for kind in PARTS["position"]),
    *({"pool": kind.kind} for kind in PARTS["pool"]),
    *({"stem": kind.kind} for kind in PARTS["stem"] if kind.kind != "resnet"),
    {"stem": {"kind": "resnet", "layers": (1, 2), "width": 32}, "patch_size": (16, 8), "image_size": (32, 24)},
    {"attention": "axial", "pool": "mean"},
    {"registers": 2, "position": "relative", "attention": {"qk_norm": True}},
    {"input_norm": True, "norm": "rms", "mlp": {"kind": "gated", "norm": True}},
    {"block": {"kind": "parallel", "layer_scale": 0.3}},
    {"image_size": (70, 42), "patch_size": 14, "block": {"checkpoint": True}},
]


def pair_of(case: dict[str, object], fast: bool) -> tuple[VisionTransformer, VisionTransformer]:
    """The same model twice, on the CPU and on the GPU."""
    model = stir(VisionTransformer(small_config(**case))).double().eval()
    model = accelerate(model) if fast else model  # type: ignore[arg-type, assignment]
    return model, copy.deepcopy(model).to(CUDA)  # type: ignore[return-value]


def images_of(model: VisionTransformer) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(3, model.config.in_channels, *model.config.image_size, generator=generator, dtype=torch.float64)  # type: ignore[misc]


def close(gpu: Tensor, cpu: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(gpu.cpu(), cpu, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("fast", [False, True], ids=["plain", "fast"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_logits_gradients_and_attention(case: dict[str, object], fast: bool) -> None:
    cpu, gpu = pair_of(case, fast)
    images = images_of(cpu)
    for model, device in ((cpu, "cpu"), (gpu, "cuda")):
        model(images.to(device)).square().sum().backward()
    close(gpu(images.to(CUDA)), cpu(images))
    for (name, mine), other in zip(gpu.named_parameters(), cpu.parameters(), strict=True):
        if other.grad is not None:
            assert (mine.grad.cpu() - other.grad).norm() <= 1e-9 * (other.grad.norm() + 1), name
    with torch.no_grad():
        found = [m.intermediates(images.to(d), attention=True) for m, d in ((cpu, "cpu"), (gpu, "cuda"))]
    for layer, other in zip(found[1].layers, found[0].layers, strict=True):
        for name in ("before", "after", "queries", "keys", "attention", "mixed"):
            close(getattr(layer, name), getattr(other, name))


def test_float32_convolutions_are_not_rounded_to_10_bits() -> None:
    """In float32 a GPU's convolution reads 10 of the 23 bits, unless it is told not to."""
    cpu, gpu = (model.float() for model in pair_of({"stem": "conv"}, fast=True))
    images = images_of(cpu).float()
    with torch.no_grad(), no_tf32(CUDA):
        torch.testing.assert_close(gpu(images.to(CUDA)).cpu(), cpu(images), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", [kind.kind for kind in MAPS])
def test_class_maps(method: str) -> None:
    config = small_config(image_size=(32, 48), patch_size=8, num_classes=4)
    pipeline = EvalPipeline((32, 48), 3, PreprocessConfig(fit="pad", mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.1)))
    info = ModelInfo(("cat", "dog", "eel", "fox"), pipeline, temperature=2.5)
    model = stir(build(config)).float().eval()
    photo = np.random.default_rng(0).integers(0, 256, (70, 50, 3), np.uint8)
    maps = [
        vitreous.explain(Classifier(copy.deepcopy(model), info, device=device), photo, method=method).patches
        for device in ("cpu", "cuda")
    ]
    np.testing.assert_allclose(maps[1], maps[0], rtol=1e-3, atol=1e-3 * np.abs(maps[0]).max())


@pytest.mark.parametrize("policy", ["none", "rand", "trivial", "three"])
def test_augmented_batches(policy: str) -> None:
    options = {"flip": 0.5, "pad_crop": 3, "color_jitter": 0.3, "erasing": 0.5, "mixup": 0.4, "cutmix": 1.0}
    pipeline = EvalPipeline((24, 32), 3, PreprocessConfig(mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.1)))
    augment = BatchAugment(AugmentConfig(policy=policy, **options), pipeline, 5, seed=3)  # type: ignore[arg-type]
    images = torch.randint(0, 256, (32, 3, 24, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    labels = torch.arange(32) % 5
    for step in range(4):
        cpu, targets = augment(images, labels, epoch=1, step=step)
        gpu, same = augment(images.to(CUDA), labels.to(CUDA), epoch=1, step=step)
        close(same, targets, 1e-6)
        # A level of 8 bits may be rounded to its neighbour, and an operation may then enlarge it.
        assert ((gpu.cpu() - cpu).abs() > 0.1).float().mean() < 0.01


def test_cropped_batches() -> None:
    pipeline = EvalPipeline((16, 16), 3, PreprocessConfig(mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.1)))
    augment = BatchAugment(AugmentConfig(resized_crop=0.3, small_first=(0.5,)), pipeline, 5, seed=3)
    images = torch.randint(0, 256, (8, 3, 24, 20), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    boxes = torch.tensor([[0.1, 0.2, 0.7, 0.6]]).expand(8, 4)
    labels = torch.arange(8) % 5
    for progress in (0.1, 0.9):
        cpu, _ = augment(images, labels, epoch=0, step=0, progress=progress, boxes=boxes)
        gpu, _ = augment(images.to(CUDA), labels.to(CUDA), epoch=0, step=0, progress=progress, boxes=boxes.to(CUDA))
        assert (gpu.cpu() - cpu).abs().max() < 0.05  # a level of 8 bits is 0.02 or less


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "muon"])
def test_steps_of_every_optimiser(name: str) -> None:
    cpu, gpu = pair_of({}, fast=True)
    config = OptimConfig(name=name, lr=1e-2, weight_decay=0.1)  # type: ignore[arg-type]
    images = images_of(cpu)
    for model, device in ((cpu, "cpu"), (gpu, "cuda")):
        optimizer = build_optimizer(model, config)
        for _ in range(3):
            optimizer.zero_grad()
            model(images.to(device)).square().sum().backward()
            optimizer.step()
    for (key, mine), other in zip(gpu.state_dict().items(), cpu.state_dict().values(), strict=True):
        assert (mine.cpu() - other).norm() <= 1e-6 * (other.norm() + 1), key
