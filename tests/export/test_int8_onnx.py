"""int8 in ONNX: the written model computes in 8 bits what was decided on OpenVINO's graph."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("onnx", reason="onnx is not installed: pip install -e '.[dev]'")
pytest.importorskip("nncf", reason="nncf is not installed: pip install -e '.[dev]'")

import onnx
import onnxruntime
import torch
from onnx import numpy_helper

import vitreous
from vitreous.checkpoint.opening import OpenOptions, open_with_details
from vitreous.cli.main import main
from vitreous.errors import OutputError
from vitreous.export import onnx_file
from vitreous.export.description import describe
from vitreous.export.graph.core import Core, output_names, tap_names
from vitreous.export.quantisation import calibration
from vitreous.export.quantisation import quantise as story
from vitreous.export.quantisation.files import Int8
from vitreous.export.quantisation.folding import fold
from vitreous.export.quantisation.layers import quantised_units, restore
from vitreous.export.quantisation.onnx_graph import quantised_model
from vitreous.export.quantisation.onnx_running import OnnxRuntime
from vitreous.export.quantisation.quantise import quantise
from vitreous.export.quantisation.running import Top1, logit_error, logits_of

PRODUCTS = 12  # queries, keys, values, projection and two of the MLP in each of two blocks


def images_of(seed: int, count: int) -> np.ndarray:
    """Coloured noise: (count, 40, 56, 3), which the graph resizes."""
    rng = np.random.default_rng(seed)
    coarse = rng.standard_normal((count, 5, 7, 3)) + rng.standard_normal((count, 1, 1, 3))
    fine = coarse.repeat(8, 1).repeat(8, 2) + 0.2 * rng.standard_normal((count, 40, 56, 3))
    return np.clip(128 + 50 * fine, 0, 255).astype(np.uint8)


CALIBRATION = [image[None] for image in images_of(1, 24)]
OTHERS = [images_of(2, 48)]


@pytest.fixture(scope="module")
def float_file(model_file, tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("float") / "m.onnx"
    opened = open_with_details(model_file, OpenOptions())
    words = describe(opened.info, "onnx", file.name, precision="float32", resize="exact")
    core = Core(opened.model, opened.info).eval()
    names = {"outputs": output_names(opened.info), "taps": tap_names(opened.model)}
    with torch.no_grad():
        core(torch.zeros(1, 3, 32, 48))  # builds the tables of positions
        onnx_file.write(core, opened.info.pipeline, **names, words=words, file=file)
    return file


@pytest.fixture(scope="module")
def runtime(float_file) -> OnnxRuntime:
    return OnnxRuntime(float_file)


@pytest.fixture(scope="module")
def pixels(runtime):
    return runtime.graph_inputs(OTHERS)


@pytest.fixture(scope="module")
def smoothed(runtime):
    """The graph quantised with SmoothQuant, before anything is folded or goes back to float."""
    return calibration.quantised(runtime.graph, runtime.graph_inputs(CALIBRATION), 0.95, runtime.in_float)


def run(model: onnx.ModelProto, folder: Path) -> np.ndarray:
    onnx.save_model(model, folder / "m.onnx")
    runner = onnx_file.Runner(folder / "m.onnx")
    return dict(zip(runner.outputs, runner(OTHERS[0]), strict=True))["logits"]


def weights_of(model: onnx.ModelProto) -> list[np.ndarray]:
    return [numpy_helper.to_array(each) for each in model.graph.initializer if len(each.dims) == 2]


@pytest.mark.parametrize("change", [lambda graph: graph, fold], ids=["smoothed", "folded"])
def test_onnx_computes_what_openvino_does(runtime, smoothed, pixels, change):
    graph = change(smoothed)
    expected = logits_of(graph, pixels, "float32")
    off = logit_error(expected, logits_of(runtime.graph, pixels))
    found = runtime.logits_of(graph, OTHERS)
    assert off > 0.01, "the quantisation is not seen"
    assert logit_error(found, expected) < 0.25 * off  # values on the edge of two levels are rounded otherwise


def test_factors_are_folded_into_norms_and_values(runtime, smoothed):
    factors = [
        Counter(node.op_type for node in runtime.model_of(each).graph.node)["Mul"]
        for each in (smoothed, fold(smoothed))
    ]
    assert factors[0] - factors[1] == 6  # two norms and the values in each block; those after GELU stay


def test_products_are_stored_and_computed_in_8_bits(runtime, smoothed, tmp_path):
    model = runtime.model_of(fold(smoothed))
    small = [each for each in weights_of(model) if each.dtype == np.int8]
    assert len(small) == PRODUCTS
    assert all(abs(each).max() == 127 for each in small)
    kept = {each.shape for each in weights_of(model) if each.dtype == np.float32 and min(each.shape) > 2}
    assert kept == {(3, 32)}  # the head
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    computed = Counter(node.op_type for node in onnx.load(tmp_path / "optimised.onnx").graph.node)
    assert computed["MatMulIntegerToFloat"] == PRODUCTS
    assert computed["DequantizeLinear"] == computed["MatMul"] == 0


def test_the_original_and_its_names_stay(runtime, smoothed):
    before = runtime.model.SerializeToString(deterministic=True)
    model = runtime.model_of(smoothed)
    assert runtime.model.SerializeToString(deterministic=True) == before
    assert model.metadata_props == runtime.model.metadata_props
    assert [each.name for each in model.graph.output] == [each.name for each in runtime.model.graph.output]
    inner = {name for node in runtime.model.graph.node for name in node.output if name.startswith(("block", "final"))}
    assert len(inner) > 8
    assert inner <= {name for node in model.graph.node for name in node.output}


@pytest.mark.parametrize("change", [lambda graph: graph, fold], ids=["smoothed", "folded"])
def test_what_goes_back_to_float_is_exact(runtime, smoothed, tmp_path, change):
    """Also where SmoothQuant's factors stay, which the weights then undo."""
    graph = restore(smoothed, runtime.graph, quantised_units(smoothed, {}))
    model = quantised_model(change(graph), runtime.graph, runtime.model)
    assert not [each for each in weights_of(model) if each.dtype == np.int8]
    assert logit_error(run(model, tmp_path), runtime.logits_of(runtime.graph, OTHERS)) < 1e-5


def test_one_unit_back_in_float_leaves_the_others(runtime, smoothed):
    units = quantised_units(smoothed, {})
    assert [len(unit.layers) for unit in units] == [3, 1, 1, 1] * 2
    assert not any(unit.attention for unit in units)
    for unit in units[:4]:
        model = runtime.model_of(restore(smoothed, runtime.graph, [unit]))
        assert sum(each.dtype == np.int8 for each in weights_of(model)) == PRODUCTS - len(unit.layers)


def test_accuracy_is_that_of_onnx_runtime(runtime, smoothed, monkeypatch):
    monkeypatch.setattr(story, "SETTINGS", {"SmoothQuant on": 0.95})
    monkeypatch.setattr(story, "quantised", lambda *given: smoothed.clone())
    agreement = Top1(OTHERS, runtime.logits_of(runtime.graph, OTHERS).argmax(1), runtime)
    told: list[str] = []
    result = quantise(runtime.graph, CALIBRATION, agreement, 10.0, told.append, runtime=runtime)
    assert result.accuracy_before == 1
    assert result.accuracy_after == (runtime.logits_of(result.graph, OTHERS).argmax(1) == agreement.labels).mean()
    assert result.tried[0].attention == "float"
    assert result.rest == "float32"
    assert result.speed.precision == "float32"
    assert any("on this machine" in line for line in told)


def test_collapsed_quantiser_is_rejected(float_file, runtime, smoothed, monkeypatch, tmp_path):
    """The scales of the weights are planted to be 30 times too large; the file stays as it was."""
    import openvino

    collapsed = smoothed.clone()
    for node in collapsed.get_ordered_ops():
        if "fq_weights" in node.get_friendly_name() and node.get_type_name() == "Multiply":
            scale = node.input_value(1).get_node().data * 30
            node.input(1).replace_source_output(openvino.opset13.constant(scale).output(0))
    monkeypatch.setattr(story, "SETTINGS", {"SmoothQuant on": 0.95})
    monkeypatch.setattr(story, "quantised", lambda *given: collapsed)
    file = tmp_path / "m.onnx"
    file.write_bytes(before := float_file.read_bytes())
    with pytest.raises(OutputError, match="int8 destroys this model"):
        Int8(CALIBRATION, Top1(OTHERS, np.zeros(48, np.int64)), 100.0)("onnx", [file])
    assert file.read_bytes() == before


def test_a_model_in_two_files_is_refused(tmp_path):
    step = Int8(CALIBRATION, Top1(OTHERS, np.zeros(48, np.int64)))
    with pytest.raises(OutputError, match=r"above 1\.9 GB: use --to openvino"):
        step("onnx", [tmp_path / "m.onnx", tmp_path / "m.onnx.data"])


def test_command_writes_a_verified_file(model_file, float_file, tmp_path, monkeypatch, capsys):
    """The labels are the float model's own classes, so that every loss is of int8."""
    monkeypatch.setattr(story, "SETTINGS", {"SmoothQuant off": None})
    images, classifier = images_of(3, 72), vitreous.load(model_file, engine="torch")
    for number, (image, found) in enumerate(zip(images, classifier.predict(list(images)), strict=True)):
        folder = tmp_path / "data" / found.label
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{number}.png")
    file = tmp_path / "m.onnx"
    words = ["export", str(model_file), str(file), "--to", "onnx", "--int8", "--check", str(tmp_path / "data")]
    assert main([*words, "--max-drop", "5", "--json", str(tmp_path / "m.json")]) == 0, capsys.readouterr().err
    document = json.loads((tmp_path / "m.json").read_text())
    assert document["precision"] == "int8"
    assert document["int8"]["accuracy_before"] == 1
    assert document["int8"]["drop"] <= 5
    assert file.stat().st_size < 0.7 * float_file.stat().st_size
    opened = vitreous.load(file)
    agreeing = [
        one.label == other.label
        for one, other in zip(opened.predict(list(images)), classifier.predict(list(images)), strict=True)
    ]
    assert np.mean(agreeing) >= 0.9


def test_int8_of_a_torch_program_is_refused(model_file, tmp_path, capsys):
    words = ["export", str(model_file), str(tmp_path / "m.pt2"), "--to", "torch", "--int8", "--check", str(tmp_path)]
    assert main(words) == 2
    assert "--int8 is not possible with --to torch: use --to openvino, onnx or web" in capsys.readouterr().err
