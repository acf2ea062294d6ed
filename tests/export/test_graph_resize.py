"""The resize in a graph: the geometry of `data/placement.py`, and the pixels of Pillow."""

from __future__ import annotations

import random

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

from vitreous.data.config import PreprocessConfig
from vitreous.data.placement import place
from vitreous.data.preprocess import EvalPipeline
from vitreous.export.graph.geometry import first_pass, geometry, rows_first
from vitreous.export.graph.onnx_resize import resize_model
from vitreous.export.graph.torch_resize import Resize
from vitreous.export.graph.tracing import trace

SIZES = ((100, 40), (700, 5), (5, 7), (1, 700), (600, 3), (32, 48), (33, 49), (64, 96))  # extreme, tall, identical
PHOTO = load_sample_images().images[0]


def images() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [PHOTO, *(rng.integers(0, 256, (*size, 3), dtype=np.uint8) for size in SIZES)]


def pipeline(fit: str, interpolation: str) -> EvalPipeline:
    constants = PreprocessConfig(fit, 0.9, interpolation, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.1))
    return EvalPipeline((32, 48), 3, constants)


def test_the_geometry_is_that_of_the_pipeline():
    draw = random.Random(0)
    for _ in range(20_000):
        config = PreprocessConfig(fit=draw.choice(["crop", "squash", "pad"]), crop_ratio=draw.choice([1, 0.875, 0.3]))
        size = draw.randint(1, 400), draw.choice([1, 8, 32, 224])
        h, w = draw.randint(1, draw.choice([5, 50, 3000])), draw.randint(1, draw.choice([5, 60, 16_000]))
        at, expected = geometry(h, w, size, config), place((h, w), size, config)
        cut = at.cut_left, at.cut_top, at.cut_left + at.cut[1], at.cut_top + at.cut[0]
        shift = at.pad_left - at.crop_left, at.pad_top - at.crop_top
        assert (cut, at.resized, *shift) == (expected.cut, expected.resized, expected.left, expected.top), (h, w, size)


def test_the_order_of_passes_is_that_of_this_pillow():
    draw, rng, orders = random.Random(1), np.random.default_rng(1), set()
    for _ in range(300):
        h, w, height, width = (draw.randint(3, 120) for _ in range(4))
        image = Image.fromarray(rng.integers(0, 256, (h, w), dtype=np.uint8))
        at = geometry(h, w, (height, width), PreprocessConfig(fit="squash"))
        middle = first_pass(at)
        twice = image.resize(middle[::-1], Image.BICUBIC).resize((width, height), Image.BICUBIC)
        assert twice.tobytes() == image.resize((width, height), Image.BICUBIC).tobytes(), (h, w, height, width)
        orders.add(middle == (h, width))
    assert orders == ({True} if rows_first() else {True, False})


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear", "lanczos", "nearest"])
@pytest.mark.parametrize("fit", ["crop", "squash", "pad"])
def test_the_exact_resize_has_the_bytes_of_pillow(fit, interpolation):
    prepared = pipeline(fit, interpolation)
    in_torch, model = Resize(prepared), resize_model(prepared).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    for image in images():
        expected = prepared.pixels(Image.fromarray(image)).transpose(2, 0, 1)
        batch = np.stack([image, image[::-1, ::-1]])
        found = session.run(None, {"images": batch})[0]
        assert (found[0] == expected).all(), image.shape
        assert (in_torch(torch.from_numpy(batch)).numpy() == found).all(), image.shape


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("fit", ["crop", "squash", "pad"])
def test_the_native_resize_differs_by_one_level_in_few_pixels(fit, interpolation):
    prepared = pipeline(fit, interpolation)
    model = resize_model(prepared, native=True).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    for image in images():
        expected = prepared.pixels(Image.fromarray(image)).transpose(2, 0, 1)
        difference = abs(session.run(None, {"images": image[None]})[0][0] - expected)
        assert difference.max() <= 1, image.shape
        assert (difference > 0).mean() <= 0.15, image.shape


def test_a_traced_resize_takes_images_of_any_size():
    prepared = pipeline("crop", "bicubic")
    traced = trace(Resize(prepared), torch.zeros(2, 40, 50, 3, dtype=torch.uint8), (0, 1, 2)).module()
    for image in images()[:5]:
        expected = prepared.pixels(Image.fromarray(image)).transpose(2, 0, 1)
        assert (traced(torch.tensor(image[None])).numpy()[0] == expected).all()
