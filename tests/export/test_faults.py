"""Ten faults, planted in written ONNX graphs or in their writer: each is rejected, and where it lies is named."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from exported_models import saved
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from vitreous.errors import CheckpointError
from vitreous.export import onnx_file
from vitreous.export.graph import onnx_resize, onnx_weights
from vitreous.export.graph.core import PIXELS
from vitreous.export.run import Options, export

Graph = Any


@pytest.fixture(scope="module")
def written(model_file, tmp_path_factory) -> dict[str, Path]:
    """Correct files by their resize, written and verified once."""
    files = {}
    for resize in ("exact", "native"):
        files[resize] = tmp_path_factory.mktemp(resize) / "out.onnx"
        export(model_file, files[resize], "onnx", options=Options(resize=resize))
    return files


def planted(monkeypatch: pytest.MonkeyPatch, file: Path, fault: Callable[[Graph], None]) -> None:
    """Let the writer write a correct file that has been changed."""

    def write(*args: Any, file: Path, **kwargs: Any) -> list[Path]:
        fault(model)
        onnx.save_model(model, file)
        return [file]

    model = onnx.load(file)
    monkeypatch.setattr(onnx_file, "write", write)


def rejection(source: Path, folder: Path, options: Options | None = None, form: str = "onnx") -> str:
    """Export a model whose file must be rejected without a trace; return the reason."""
    with pytest.raises(CheckpointError) as caught:
        export(source, folder / {"onnx": "out.onnx", "torch": "out.pt2"}[form], form, options=options)
    assert str(caught.value).endswith("nothing was kept")
    assert "\n" not in str(caught.value)
    assert os.listdir(folder) == []
    return str(caught.value)


def constant(model: Graph, values: tuple[float, ...]) -> Any:
    """The initialiser that holds these numbers, one per channel."""
    found = [
        each
        for each in model.graph.initializer
        if np.array_equal(numpy_helper.to_array(each).ravel(), np.float32(values))
    ]
    assert len(found) == 1, [each.name for each in found]
    return found[0]


def replace(tensor: Any, array: np.ndarray) -> None:
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))


def feed(model: Graph, name: str, kind: str, *inputs: str, **attributes: Any) -> None:
    """Insert a node behind a tensor, for all its readers."""
    for node in model.graph.node:
        for n, each in enumerate(node.input):
            node.input[n] = f"{name} changed" if each == name else each
    at = next(n for n, node in enumerate(model.graph.node) if name in node.output)
    model.graph.node.insert(at + 1, helper.make_node(kind, [name, *inputs], [f"{name} changed"], **attributes))


def test_swapped_mean_and_std(model_file, written, tmp_path, monkeypatch):
    def swap(model: Graph) -> None:
        mean, std = constant(model, (0.5, 0.4, 0.3)), constant(model, (0.2, 0.3, 0.1))
        one, other = numpy_helper.to_array(mean), numpy_helper.to_array(std)
        replace(mean, other)
        replace(std, one)

    planted(monkeypatch, written["exact"], swap)
    assert "the first layer that differs is normalisation" in rejection(model_file, tmp_path)


def test_colours_in_the_other_order(model_file, written, tmp_path, monkeypatch):
    def reverse(model: Graph) -> None:
        model.graph.initializer.append(numpy_helper.from_array(np.array([2, 1, 0]), "order"))
        feed(model, PIXELS, "Gather", "order", axis=1)

    planted(monkeypatch, written["exact"], reverse)
    assert "the first layer that differs is normalisation" in rejection(model_file, tmp_path)


@pytest.mark.parametrize("resize", ["exact", "native"])
def test_bilinear_instead_of_bicubic(model_file, tmp_path, monkeypatch, resize):
    monkeypatch.setitem(onnx_weights._FILTERS, "bicubic", onnx_weights._triangle)
    monkeypatch.setitem(onnx_resize.NATIVE_MODES, "bicubic", "linear")
    reason = rejection(model_file, tmp_path, Options(resize=resize))
    assert "the first layer that differs is the resize: " in reason
    assert "of the pixels differ, by up to" in reason


@pytest.mark.parametrize("resize", ["exact", "native"])
def test_no_antialiasing(model_file, written, tmp_path, monkeypatch, resize):
    def alias(model: Graph) -> None:
        for node in model.graph.node:
            if node.op_type == "Resize":
                for attribute in node.attribute:
                    if attribute.name in ("antialias", "exclude_outside"):
                        attribute.i = 0
                    elif attribute.name == "mode":  # cubic has no other kernel for bytes
                        attribute.s = b"linear"
            if node.op_type == "Max" and node.name.startswith("resize_max_stretch"):
                node.op_type, node.input[:] = "Identity", [node.input[1]]

    planted(monkeypatch, written[resize], alias)
    assert "the first layer that differs is the resize: " in rejection(model_file, tmp_path, Options(resize=resize))


def test_fixed_batch(model_file, written, tmp_path, monkeypatch):
    def fix(model: Graph) -> None:
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1

    planted(monkeypatch, written["exact"], fix)
    assert "does not run on 7 images of 35 x 53" in rejection(model_file, tmp_path)


def test_square_images_only(model_file, written, tmp_path, monkeypatch):
    """The width is taken for the height too, as by an exporter that saw square images."""

    def square(model: Graph) -> None:
        for node in model.graph.node:
            if node.op_type == "Shape" and list(node.input) == ["images"]:
                for attribute in node.attribute:
                    attribute.i = {"start": 2, "end": 3}[attribute.name]

    planted(monkeypatch, written["exact"], square)
    reason = rejection(model_file, tmp_path)
    assert "35 x 53" in reason  # the first images that are not square
    assert "the first layer that differs is the resize" in reason or "does not run on" in reason


def test_overflow_of_fp16_in_a_layer_norm(tmp_path, monkeypatch):
    """A LayerNorm in parts squares its input: above 256 fp16 overflows (not in ONNX Runtime)."""
    monkeypatch.setattr(nn.LayerNorm, "forward", _layer_norm_in_parts)
    (tmp_path / "source").mkdir()
    (tmp_path / "out").mkdir()
    source = saved(tmp_path / "source", rules=False)
    _widen(source)
    reason = rejection(source, tmp_path / "out", Options(precision="fp16"), "torch")
    assert "the first layer that differs is block 0 attention norm" in reason


def _layer_norm_in_parts(self: nn.LayerNorm, x: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    spread = centred.pow(2).mean(-1, keepdim=True)
    return centred / (spread + self.eps).sqrt() * self.weight + self.bias


def _widen(source: Path) -> None:
    """Let one channel of the residual stream be large, as in trained models."""
    from vitreous.checkpoint.model_file import load_model, save_model

    model, info = load_model(source)
    with torch.no_grad():
        model.pos_embed[..., 0] += 2000
    save_model(source, model, info)


def test_a_collapsed_quantiser(model_file, tmp_path):
    class Collapsed:
        """Keeps two levels of each matrix, one of them zero."""

        precision = "fp16"

        def __call__(self, form: str, files: list[Path], opened: object) -> list[Path]:
            model = onnx.load(files[0])
            for tensor in model.graph.initializer:
                array = numpy_helper.to_array(tensor)
                if array.dtype == np.float32 and array.ndim >= 2 and array.size > 64:
                    scale = abs(array).max()
                    replace(tensor, (np.round(array / scale) * scale).astype(np.float32))
            onnx.save_model(model, files[0])
            return files

    reason = rejection(model_file, tmp_path, Options(quantise=Collapsed()))
    assert "the first layer that differs is patch embedding" in reason


def test_tanh_instead_of_erf(model_file, written, tmp_path, monkeypatch):
    def approximate(model: Graph) -> None:
        nodes = [node for node in model.graph.node if node.op_type == "Gelu"]
        assert len(nodes) == 2
        for node in nodes:
            del node.attribute[:]
            node.attribute.append(helper.make_attribute("approximate", "tanh"))

    planted(monkeypatch, written["exact"], approximate)
    assert "the first layer that differs is block 0 MLP" in rejection(model_file, tmp_path)


def test_permuted_classes(model_file, written, tmp_path, monkeypatch):
    def permute(model: Graph) -> None:
        model.graph.initializer.append(numpy_helper.from_array(np.array([1, 2, 0]), "order"))
        feed(model, "logits", "Gather", "order", axis=1)
        model.graph.output[1].CopyFrom(helper.make_tensor_value_info("logits changed", TensorProto.FLOAT, [None, 3]))
        names = {"logits": "logits before", "logits changed": "logits"}
        for node in model.graph.node:
            for names_of in (node.input, node.output):
                names_of[:] = [names.get(each, each) for each in names_of]
        model.graph.output[1].name = "logits"

    planted(monkeypatch, written["exact"], permute)
    reason = rejection(model_file, tmp_path)
    assert "the first layer that differs is the head" in reason


def test_permuted_class_names(model_file, written, tmp_path, monkeypatch):
    def permute(model: Graph) -> None:
        for entry in model.metadata_props:
            if entry.key == "classes":
                entry.value = json.dumps(json.loads(entry.value)[::-1])

    planted(monkeypatch, written["exact"], permute)
    assert "has another description than the model (classes)" in rejection(model_file, tmp_path)
