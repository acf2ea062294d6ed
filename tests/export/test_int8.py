"""int8: what goes back to float is exact, what is folded changes nothing, and no destroyed model passes."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch

pytest.importorskip("openvino", reason="openvino is not installed: pip install -e '.[dev]'")
pytest.importorskip("nncf", reason="nncf is not installed: pip install -e '.[dev]'")

import openvino

from vitreous.accelerate.model import build
from vitreous.engines import openvino_engine
from vitreous.errors import DataError, MissingExtraError, OutputError, UsageError
from vitreous.export.quantisation import calibration
from vitreous.export.quantisation import quantise as story
from vitreous.export.quantisation.files import Int8
from vitreous.export.quantisation.folding import fold
from vitreous.export.quantisation.layers import SMOOTH, constant, float_layers, layer_names, quantised_units, restore
from vitreous.export.quantisation.quantise import quantise
from vitreous.export.quantisation.running import Speed, Top1, compare_speed, is_quantised, logit_error, logits_of
from vitreous.model.config import ViTConfig

# 16 tokens with 16 channels per head: OpenVINO 2026.4.1 computes int8 attention of this shape wrongly in bf16.
SMALL = {"image_size": 32, "patch_size": 8, "num_classes": 5, "width": 32, "depth": 2, "heads": 2, "mlp_dim": 64}
OUTLIER = 4000.0
PLANTED = "blocks.1.mlp.fc2"


def model_of(**changes: object) -> torch.nn.Module:
    """A small model in which no weight is zero."""
    torch.manual_seed(0)
    model = build(ViTConfig(**{**SMALL, "pool": "mean", "init": "timm", **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        model.head.weight.mul_(10)
    return model


def graph_of(model: torch.nn.Module, folder) -> openvino.Model:
    openvino_engine.convert(model, (32, 32), folder)
    return openvino.Core().read_model(folder / "graph.xml")


def images_of(seed: int, count: int) -> list[np.ndarray]:
    """Coloured noise in batches of 16: (16, 3, 32, 32) each."""
    rng = np.random.default_rng(seed)
    coarse = rng.standard_normal((count, 3, 8, 8)) + rng.standard_normal((count, 3, 1, 1))
    fine = coarse.repeat(4, 2).repeat(4, 3) + 0.2 * rng.standard_normal((count, 3, 32, 32))
    return np.split(fine.astype(np.float32), count // 16)


def smooth_factors(graph) -> list[str]:
    return [
        node.get_friendly_name()
        for node in graph.get_ordered_ops()
        if node.get_type_name() == "Multiply" and SMOOTH in node.get_friendly_name()
    ]


CALIBRATION = images_of(1, 32)
OTHERS = images_of(2, 64)
SINGLE = [image[None] for batch in CALIBRATION for image in batch]


@pytest.fixture(scope="module")
def model():
    return model_of()


@pytest.fixture(scope="module")
def weights(model):
    return {name: value.numpy() for name, value in model.state_dict().items()}


@pytest.fixture(scope="module")
def graph(model, tmp_path_factory):
    return graph_of(model, tmp_path_factory.mktemp("graph"))


@pytest.fixture(scope="module")
def smoothed(graph):
    """The graph quantised with SmoothQuant, before anything goes back to float."""
    return calibration.quantised(graph, SINGLE, 0.95)


@pytest.fixture(scope="module")
def agreement(graph):
    """The fraction of images with the float graph's label."""
    return Top1(OTHERS, logits_of(graph, OTHERS).argmax(1))


@pytest.fixture(scope="module")
def told():
    return []


@pytest.fixture(scope="module")
def result(graph, weights, agreement, told):
    return quantise(graph, CALIBRATION, agreement, 5.0, told.append, weights=weights)


def test_result_is_int8_and_close(result, graph, told):
    assert is_quantised(result.graph)
    assert not is_quantised(graph)
    assert result.accuracy_before == 1
    assert result.drop <= 5
    assert result.error < 0.1  # on a CPU with AMX, attention in int8 would make it about 1
    assert [each.setting for each in result.tried] == ["SmoothQuant off", "SmoothQuant on"]
    assert logit_error(logits_of(result.graph, OTHERS), logits_of(graph, OTHERS)) < 0.1
    assert told[-len(result.lines()) :] == result.lines()
    assert result.speed is not None
    assert result.speed.batch == 16
    assert json.loads(json.dumps(result.to_dict()))["setting"] == result.setting


def test_first_and_last_layers_stay_float(result, graph, weights):
    assert result.kept == ("patch_embed.proj", "head")
    units = quantised_units(result.graph, layer_names(graph, weights))
    quantised = {name for unit in units if not unit.attention for name in unit.name.split(", ")}
    expected = {f"blocks.{i}.{name}" for i in (0, 1) for name in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")}
    assert quantised == expected


def test_weights_are_stored_in_int8(result, tmp_path):
    openvino.save_model(result.graph, tmp_path / "m.xml", compress_to_fp16=False)
    stored = openvino.Core().read_model(tmp_path / "m.xml")
    matrices = [
        node.input_value(1).get_node().input_value(0).get_node().input_value(0).get_node()
        for node in stored.get_ordered_ops()
        if node.get_type_name() == "MatMul" and node.get_friendly_name() not in float_layers(stored)[1]
    ]
    assert len(matrices) == 12  # queries, keys, values, projection and two of the MLP in two blocks
    assert {node.get_element_type() for node in matrices} == {openvino.Type.i8}
    np.testing.assert_array_equal(logits_of(stored, OTHERS), logits_of(result.graph, OTHERS))


def test_same_images_give_the_same_graph(graph, smoothed):
    again = calibration.quantised(graph, SINGLE, 0.95)
    first, second = (
        [node.data for node in each.get_ordered_ops() if node.get_type_name() == "Constant"]
        for each in (smoothed, again)
    )
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


def test_all_units_back_in_float_are_the_original(graph, smoothed):
    units = quantised_units(smoothed, {})
    restored = restore(smoothed, graph, units)
    expected = logits_of(graph, OTHERS)
    assert not is_quantised(restored)
    assert logit_error(logits_of(restored, OTHERS, "float32"), expected) < 1e-5
    assert logit_error(logits_of(smoothed, OTHERS, "float32"), expected) > 1e-3
    assert is_quantised(smoothed), "restoring changed the graph it was given"


def test_one_unit_back_in_float_leaves_the_others(graph, smoothed):
    units = quantised_units(smoothed, {})
    assert len(units) == 10  # in each of two blocks: queries, keys and values; attention; projection; MLP twice
    for unit in units:
        left = quantised_units(restore(smoothed, graph, [unit]), {})
        assert [each.layers for each in left] == [each.layers for each in units if each != unit]


def test_folding_changes_no_logit(smoothed):
    folded = fold(smoothed)
    assert len(smooth_factors(smoothed)) >= 8
    assert all("gelu" in name or "mean" in name for name in smooth_factors(folded)), smooth_factors(folded)
    assert logit_error(logits_of(folded, OTHERS, "float32"), logits_of(smoothed, OTHERS, "float32")) < 0.005
    behind_attention = [
        node
        for node in folded.get_ordered_ops()
        if node.get_type_name() == "FakeQuantize"
        and node.input_value(0).get_node().get_type_name() == "ScaledDotProductAttention"
    ]
    assert len(behind_attention) == 2


def test_layer_that_costs_accuracy_goes_back_to_float(tmp_path, monkeypatch):
    """One hidden channel of an MLP is planted to be far larger than the others: int8 then has few levels for them."""
    model = model_of()
    with torch.no_grad():
        model.blocks[1].mlp.fc1.bias[0] = OUTLIER
        model.blocks[1].mlp.fc2.weight[:, 0] *= 1e-4
    graph = graph_of(model, tmp_path)
    monkeypatch.setattr(story, "SETTINGS", {"SmoothQuant off": None})  # SmoothQuant mends this by itself
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    agreement = Top1(OTHERS, logits_of(graph, OTHERS).argmax(1))
    told: list[str] = []
    result = quantise(graph, CALIBRATION, agreement, 1.0, told.append, weights=weights, time_batch=None)
    assert 100 * (1 - result.tried[0].accuracy) > 1.0, "nothing had to go back"
    assert result.restored[0].name == PLANTED
    assert result.drop <= 1.0
    assert result.accuracy_after == agreement(result.graph, result.rest)
    assert result.restored[0].error_alone < result.restored[0].error_before
    assert any(f"back in float: {PLANTED}, because" in line for line in told)
    assert not [unit for unit in quantised_units(result.graph, layer_names(graph, weights)) if unit.name == PLANTED]
    assert all(100 * (1 - each.accuracy) > 1.0 for each in result.restored[:-1]), "more went back than necessary"


@pytest.fixture
def one_setting(monkeypatch, smoothed):
    """NNCF's result is taken from :func:`smoothed`, which saves its time."""
    monkeypatch.setattr(story, "SETTINGS", {"SmoothQuant on": 0.95})
    monkeypatch.setattr(story, "quantised", lambda *given: smoothed.clone())


def test_collapsed_quantiser_is_rejected(graph, smoothed, one_setting, monkeypatch):
    """The scales of the weights are planted to be 30 times too large."""
    collapsed = smoothed.clone()
    for node in collapsed.get_ordered_ops():
        if "fq_weights" in node.get_friendly_name() and node.get_type_name() == "Multiply":
            scale = node.input_value(1).get_node().data * 30
            node.input(1).replace_source_output(openvino.opset13.constant(scale).output(0))
    monkeypatch.setattr(story, "quantised", lambda *given: collapsed)
    told: list[str] = []
    with pytest.raises(OutputError, match=r"int8 destroys this model \(SmoothQuant on: logits off by \d+%\)"):
        quantise(graph, CALIBRATION, lambda graph, precision: 0.5, 100.0, told.append)
    assert any("is discarded" in line for line in told)


@pytest.mark.parametrize("several", [False, True])
def test_a_shift_of_all_logits_matters_to_several_labels(graph, smoothed, one_setting, monkeypatch, tmp_path, several):
    """It changes neither a softmax, nor the order of images that the mAP depends on, but each sigmoid."""
    shifted = smoothed.clone()
    last = [node for node in shifted.get_ordered_ops() if node.get_type_name() == "Add"][-1]  # the bias of the head
    (bias,) = (port for port in last.inputs() if constant(port.get_source_output()) is not None)
    expected = logits_of(graph, OTHERS)
    moved = constant(bias.get_source_output()) + 3 * expected.std()
    bias.replace_source_output(openvino.opset13.constant(moved).output(0))
    monkeypatch.setattr(story, "quantised", lambda *given: shifted.clone())
    openvino.save_model(graph, tmp_path / "m.xml", compress_to_fp16=False)
    labels = (expected > np.median(expected, 0)).astype(np.int64) if several else expected.argmax(1)
    step, files = Int8(CALIBRATION, Top1(OTHERS, labels), 10.0), [tmp_path / "m.xml", tmp_path / "m.bin"]
    if several:
        with pytest.raises(OutputError, match="int8 destroys this model"):
            step("openvino", files)
    else:
        step("openvino", files)
        assert step.result.error < 0.3


def test_unreachable_accuracy_is_an_error(graph, one_setting):
    with pytest.raises(OutputError, match=r"int8 loses 50\.00 points of accuracy at best.*raise --max-drop"):
        quantise(graph, CALIBRATION, lambda graph, precision: 0.4 if is_quantised(graph) else 0.9)


def test_what_is_not_int8_is_float32_where_bf16_costs_too_much_beside_it(graph, one_setting):
    def accuracy(graph, precision):
        return 0.4 if is_quantised(graph) and precision == "fastest" else 0.9

    assert quantise(graph, CALIBRATION, accuracy, time_batch=None).rest == "float32"


@pytest.mark.parametrize(
    ("calibration_images", "accuracy", "max_drop", "error", "said"),
    [
        ([], 1.0, 0.2, DataError, "int8 needs images to calibrate with, and got none"),
        (CALIBRATION, 97.0, 0.2, OutputError, "accuracy of the graph is 97.0, it must be a fraction from 0 to 1"),
        (CALIBRATION, float("nan"), 0.2, OutputError, "accuracy of the graph is nan"),
        (CALIBRATION, 1.0, -0.1, UsageError, "--max-drop is -0.1, it must be 0 or more points"),
        (CALIBRATION, 1.0, float("nan"), UsageError, "--max-drop is nan"),
    ],
)
def test_wrong_arguments(graph, calibration_images, accuracy, max_drop, error, said):
    with pytest.raises(error, match=said):
        quantise(graph, calibration_images, lambda graph, precision: accuracy, max_drop)


def test_missing_package_is_named(graph, monkeypatch):
    monkeypatch.setitem(sys.modules, "nncf", None)
    with pytest.raises(MissingExtraError, match=r"int8 needs nncf: pip install 'vitreous\[int8\]'"):
        quantise(graph, CALIBRATION, lambda graph, precision: 1.0)


def test_nothing_is_printed(graph, capfd):
    calibration.quantised(graph, SINGLE[:4], None)
    assert capfd.readouterr() == ("", "")


def test_preprocessing_in_the_graph_stays_float(graph):
    """A graph that starts with uint8 and resizes: nothing before the first layer is quantised."""
    ops = openvino.opset13
    pixels = ops.parameter([-1, -1, -1, 3], np.uint8, "images")
    planes = ops.transpose(ops.convert(pixels, "f32"), ops.constant(np.array([0, 3, 1, 2])))
    sides, axes = ops.constant(np.array([32, 32])), ops.constant(np.array([2, 3]))
    resized = ops.interpolate(planes, sides, "bilinear_pillow", "sizes", axes=axes)
    whole = graph.clone()
    parameter = whole.get_parameters()[0]
    parameter.output(0).replace(ops.multiply(resized, ops.constant(np.float32(1 / 128))).output(0))
    whole = openvino.Model(whole.get_results(), [pixels], "whole")
    images = [np.clip(128 + 40 * batch[:4].transpose(0, 2, 3, 1), 0, 255).astype(np.uint8) for batch in CALIBRATION]
    found = calibration.quantised(whole, [image[None] for batch in images for image in batch], None)
    first = next(node for node in found.get_ordered_ops() if node.get_type_name() == "Convolution")
    above, types = [first.input_value(0).get_node()], set()
    while above:
        node = above.pop()
        types.add(node.get_type_name())
        above += [value.get_node() for value in node.input_values()]
    assert "Interpolate" in types
    assert "FakeQuantize" not in types
    assert logit_error(logits_of(found, images, "float32"), logits_of(whole, images)) < 0.2


def test_file_is_quantised_in_place(graph, monkeypatch, tmp_path):
    monkeypatch.setattr(story, "SETTINGS", {"SmoothQuant off": None})
    described = graph.clone()
    described.set_rt_info("daisy", ["vitreous", "classes"])
    openvino.save_model(described, tmp_path / "m.xml", compress_to_fp16=False)
    before, files = (tmp_path / "m.bin").stat().st_size, [tmp_path / "m.xml", tmp_path / "m.bin"]
    step = Int8(CALIBRATION, Top1(OTHERS, logits_of(graph, OTHERS).argmax(1)), 5.0)
    assert step("openvino", files) == files
    assert sorted(tmp_path.iterdir()) == sorted(files)
    written = openvino.Core().read_model(tmp_path / "m.xml")
    assert is_quantised(written)
    assert str(written.get_rt_info(["vitreous", "classes"]).value) == "daisy"
    assert (tmp_path / "m.bin").stat().st_size < 0.6 * before
    np.testing.assert_array_equal(logits_of(written, OTHERS), logits_of(step.result.graph, OTHERS))
    with pytest.raises(UsageError, match="int8 is not possible with --to torch: use --to openvino"):
        step("torch", files)


def test_logit_error():
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((50, 10)).astype(np.float32)
    assert logit_error(logits + rng.standard_normal((50, 1)).astype(np.float32), logits) == pytest.approx(0, abs=1e-6)
    assert logit_error(1.1 * logits, logits) == pytest.approx(0.1, rel=0.05)
    same = np.broadcast_to(logits.mean(0), logits.shape)
    assert logit_error(same, logits) == pytest.approx(1, rel=1e-5)
    assert logit_error(same + 100 * np.arange(10), logits + 100 * np.arange(10)) == pytest.approx(1, rel=1e-4)
    assert logit_error(logits[::-1], logits) > 1
    assert logit_error(np.where(np.arange(10) == 3, np.nan, logits), logits) == float("inf")
    assert logit_error(logits + 1, logits, several=True) == pytest.approx(1, rel=0.1)  # sigmoids see the constant
    assert logit_error(same, logits, several=True) == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize(
    ("ratio", "said"), [(1.5, "int8 on this machine: 150.0 images/s"), (0.9, "int8 is not faster on this machine")]
)
def test_report_says_whether_int8_is_faster(ratio, said):
    line = story._speed_line(Speed(16, 100.0, 100 * ratio, ratio, ratio, ratio, 3, "bf16"))
    assert line.startswith(said)
    assert f"{ratio:.2f} times" in line


def test_speed_has_all_its_figures(graph):
    speed = compare_speed(graph, graph, np.concatenate(OTHERS), rounds=3)
    assert (speed.batch, speed.rounds) == (64, 3)
    assert 0 < speed.low <= speed.ratio <= speed.high
    assert speed.before > 0
    assert speed.precision in {"f32", "bf16", "f16"}
