"""`vitreous export`: files of each format reproduce the model, without vitreous and through it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import torch
from exported_models import CLASSES, saved
from PIL import Image
from sklearn.datasets import load_sample_images

import vitreous
from vitreous.checkpoint.model_file import ModelInfo
from vitreous.checkpoint.opening import open_checkpoint
from vitreous.cli.main import main
from vitreous.data.config import PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import CheckpointError, ConfigError
from vitreous.evaluate.multilabel.rule import LabelRule
from vitreous.export import onnx_file
from vitreous.export.description import describe
from vitreous.export.formats import FORMS
from vitreous.export.graph.core import Core, output_names, tap_names
from vitreous.inspection.maps.gradient_attention import GradientAttention
from vitreous.predictor import load

FORM_NAMES = ("onnx", "openvino", "torch")
QUICK = {"fit": "squash", "interpolation": "nearest"}  # a resize that torch.export traces in little time
BLOCKED = {"onnx": ("openvino", "torch"), "openvino": ("onnxruntime", "torch"), "torch": ("openvino", "onnxruntime")}

VARIANTS = {  # each stem, pooling, position, block, norm, MLP, head and extra token once
    "folder recipe": {"stem": "conv", "pool": "mean", "interpolation": "lanczos"},
    "hybrid": {"stem": {"kind": "resnet", "layers": (1,), "width": 32}, "pool": "map", "position": "relative"},
    "tokens": {
        "position": "rope-2d",
        "registers": 2,
        "attention": {"qk_norm": True},
        "block": {"layer_scale": 0.3},
        "pool": "cls-mean",
        "head": {"kind": "mlp", "hidden": 20},
    },
    "positions before every block": {"position": {"layers": "every"}, "depth": 2, "registers": 1, "fit": "pad"},
    "axial attention": {"attention": "axial", "pool": "mean", "fit": "squash"},
    "distillation token": {
        "registers": 1,
        "pool": "prefix",
        "position": "relative-bias",
        "attention": {"key_bias": False},
        **QUICK,
    },
    "parallel": {
        "block": "parallel",
        "norm": "rms",
        "input_norm": True,
        "position": "rope-mixed",
        "mlp": {"kind": "gated", "activation": "silu"},
        **QUICK,
    },
    "norms behind": {
        "block": "norm-after",
        "position": "relative-mlp",
        "attention": {"out_norm": True},
        "mlp": {"norm": True},
        "pool": "map",
        **QUICK,
    },
    "grey, no head": {"num_classes": 0, "in_channels": 1, "stem": "linear", "pool": "seq", "position": "sincos-2d"},
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> list[Path]:
    """A photograph as a JPEG that EXIF rotates, and others as PNG: whole, grey, small."""
    folder = tmp_path_factory.mktemp("photos")
    one, other = (Image.fromarray(photo) for photo in load_sample_images().images)
    exif = Image.Exif()
    exif[0x0112] = 6
    one.save(folder / "a.jpg", exif=exif)
    other.save(folder / "b.png")
    other.convert("L").resize((70, 90)).save(folder / "c.png")
    return sorted(folder.iterdir())


@pytest.mark.parametrize("form", FORM_NAMES)
def test_the_example_in_the_metadata_runs_alone(exported, model_file, photos, form):
    """It gives the probabilities of `vitreous predict` to 1e-4, with the runtime, NumPy and Pillow only."""
    words = FORMS[form].Runner(exported[form]).words
    blocked = ("vitreous", "sklearn", "torchvision", *BLOCKED[form])
    block = f"import sys\nfor name in {blocked}:\n    sys.modules[name] = None\n"
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", block + words["example"], *map(str, photos)],
        cwd=exported[form].parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    rows = [line.split("\t") for line in run.stdout.splitlines()]
    predictions = load(model_file, device="cpu", engine="torch").predict(photos)
    expected = [(each.name, label, value) for each in predictions for label, value in each.top]
    assert [(path, label) for path, label, _ in rows] == [(path, label) for path, label, _ in expected]
    np.testing.assert_allclose([float(row[2]) for row in rows], [row[2] for row in expected], atol=1e-4)


def test_the_example_prints_the_labels_that_an_image_has(capsys):
    """Not the most probable ones below their thresholds: the end of the program, with outputs in the graph's place."""
    names, count = ("cat", "dog", "bird"), 3
    pipeline = EvalPipeline((32, 48), 3, PreprocessConfig(mean=(0.5,) * 3, std=(0.2,) * 3))
    info = ModelInfo(names, pipeline, multilabel=LabelRule((0.5, 0.9, 0.2), (1.0,) * count, (0.0,) * count))
    words = describe(info, "onnx", "m.onnx", precision="float32", resize="exact")
    assert words["outputs"] == "probabilities, logits, features, labels"
    probabilities = {"a.png": [0.5, 0.8, 0.75], "b.png": [0.25, 0.8, 0.1]}

    def run(images):
        found = np.array([probabilities[images[0]]])
        return {"probabilities": found, "labels": found >= info.multilabel.thresholds}

    before = {"json": json, "sys": SimpleNamespace(argv=["x", *probabilities]), "words": words, "run": run}
    before["read"] = np.array
    exec(words["example"][words["example"].index("\nclasses = ") :], before)
    assert capsys.readouterr().out == "a.png\tbird\t0.75\na.png\tcat\t0.5\nb.png\t(none)\n"


@pytest.mark.parametrize("form", FORM_NAMES)
def test_an_exported_file_predicts_as_its_model_does(exported, model_file, photos, form):
    model, graph = load(model_file, device="cpu", engine="torch"), load(exported[form])
    assert graph.classes == CLASSES
    assert graph.info == model.info
    assert graph.features == model.features
    for one, other in zip(model.predict(photos), graph.predict(photos), strict=True):
        assert (one.label, one.unsure, one.set) == (other.label, other.unsure, other.set)
        assert one.probability == pytest.approx(other.probability, abs=1e-5)
    np.testing.assert_allclose(graph.embed(photos), model.embed(photos), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(graph.logits(photos), model.logits(photos), rtol=1e-4, atol=1e-5)
    bare = load(exported[form], ignore_thresholds=True)
    assert bare.predict(photos[0]).unsure is None
    with pytest.raises(ConfigError, match="exported graph, without weights and gradients"):
        vitreous.explain(graph, photos[0])


def test_the_description_is_readable_with_the_formats_own_tools(exported):
    words = {entry.key: entry.value for entry in onnx.load(exported["onnx"]).metadata_props}
    assert json.loads(words["classes"]) == list(CLASSES)
    assert float(words["temperature"]) == 1.7
    assert words["license"] == "CC-BY-4.0"
    assert words["outputs"] == "probabilities, logits, features, unsure, sets"
    assert json.loads(words["pipeline"])["size"] == [32, 48]
    assert json.loads(words["abstention"])["threshold"] == 0.8
    with zipfile.ZipFile(exported["torch"]) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith("extra/vitreous.json"))
        assert json.loads(archive.read(name))["classes"] == words["classes"]
    operators = {node.op_type for node in onnx.load(exported["onnx"]).graph.node}
    assert {"LayerNormalization", "Attention", "Gelu"} <= operators
    for form in FORM_NAMES:  # no paths of this machine
        assert str(Path(__file__).parents[2]).encode() not in exported[form].read_bytes()


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_every_family_is_exported_and_verified(tmp_path, capfd, changes):
    source = saved(tmp_path, **changes)
    assert main(["export", str(source), str(tmp_path / "m.onnx"), "--to", "onnx"]) == 0
    told = capfd.readouterr().err
    assert "verified by onnxruntime" in told
    assert "resize exact" in told
    graph = load(tmp_path / "m.onnx")
    photo = Image.fromarray(load_sample_images().images[0])
    expected = load(source, device="cpu", engine="torch").embed(photo)
    np.testing.assert_allclose(graph.embed(photo), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("block", ["pre-norm", "norm-after", "parallel"])
def test_taps_have_the_names_of_the_layers_that_computed_them(tmp_path, block):
    model, info = open_checkpoint(saved(tmp_path, block=block))
    first, computed = model.blocks[0], {}
    layers = {"attention norm": first.norm1, "attention": first.attn, "MLP": first.mlp}
    layers |= {"MLP norm": first.norm2} if block != "parallel" else {}
    for name, layer in layers.items():
        layer.register_forward_hook(lambda *given, name=name: computed.update({f"block 0 {name}": given[-1]}))
    with torch.no_grad():
        values = Core(model, info).eval()(torch.rand(2, 3, 32, 48) * 255)
    found = dict(zip([*output_names(info), *tap_names(model)], values, strict=True))
    assert len(computed) == len(layers)
    assert all(torch.equal(found[name], value) for name, value in computed.items())


def test_a_page_whose_filter_has_no_operator_resizes_exactly(tmp_path, capfd):
    source = saved(tmp_path, rules=False, **QUICK)
    assert main(["export", str(source), str(tmp_path / "page.html"), "--to", "web"]) == 0
    assert "resize exact" in capfd.readouterr().err
    assert (tmp_path / "page.html").is_file()


def test_weights_above_the_limit_of_one_file_go_into_a_second(model_file, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_file, "_MAX_BYTES", 1)
    assert main(["export", str(model_file), str(tmp_path / "onnx"), "--to", "onnx"]) == 0
    assert sorted(os.listdir(tmp_path / "onnx")) == ["model.onnx", "model.onnx.data"]
    photo = load_sample_images().images[0]
    found = load(tmp_path / "onnx/model.onnx").predict(photo)
    assert found.label == load(model_file, device="cpu", engine="torch").predict(photo).label


def test_half_precision_is_kept_if_it_agrees(tmp_path):
    source = saved(tmp_path, depth=2, rules=False, **QUICK)  # decisions may differ
    words = ["export", str(source), str(tmp_path / "m.pt2"), "--to", "torch", "--precision", "bf16"]
    assert main([*words, "--json", str(tmp_path / "report.json")]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["precision"] == "bf16"
    assert 1e-5 < report["verified"]["differences"]["logits"] < 3e-2


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("m.pt2", "--to", "onnx"), 2, "does not fit --to onnx: give a folder or a file ending in .onnx"),
        (("m.onnx", "--to", "onx"), 2, "Did you mean 'onnx'"),
        (("there.onnx", "--to", "onnx"), 2, "'there.onnx' exists already: --overwrite replaces it"),
        ((".", "--to", "onnx", "--overwrite"), 2, "'.' contains the source: name another destination"),
        (("m.xml", "--to", "openvino", "--resize", "exact"), 1, "--to openvino has only native"),
    ],
)
def test_usage_errors_are_one_line(tmp_path, capfd, monkeypatch, words, code, said):
    source = saved(tmp_path)
    (tmp_path / "there.onnx").write_text("mine")
    monkeypatch.chdir(tmp_path)
    assert main(["export", source.name, *words]) in (code, 2)
    error = capfd.readouterr().err
    assert said in error
    assert error.splitlines()[-1].startswith("vitreous: ")
    assert sorted(os.listdir(tmp_path)) == ["model.safetensors", "there.onnx"]


def test_convert_names_the_verb_that_took_its_formats_over(capfd):
    assert main(["convert", "m.safetensors", "m.onnx"]) == 2
    assert "use `vitreous export MODEL DST --to onnx`" in capfd.readouterr().err
    assert main(["convert", "m.safetensors", "m", "--to=torch"]) == 2
    assert "use `vitreous export MODEL DST --to torch`" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["m.onnx", "m.xml", "m.pt2"])
def test_a_damaged_file_is_one_line(tmp_path, capfd, name):
    (tmp_path / name).write_bytes(bytes(100))
    assert main(["predict", str(tmp_path / name), "x.png"]) == 1
    error = capfd.readouterr().err
    assert "damaged" in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("classes", '["a", "a", "b"]', "class names must be unique"),
        ("classes", "[1, 2, 3]", "not a list of names"),
        ("pipeline", "{}", "missing"),
        ("temperature", "-1", "temperature is -1.0"),
        ("abstention", "[]", "abstention in its metadata is damaged"),
        ("outputs", "logits", "names outputs"),
        ("provenance", "[" * 5000, "not readable as JSON"),
        ("scores", None, "lacks scores"),
    ],
)
def test_metadata_is_checked(exported, tmp_path, key, value, said):
    model = onnx.load(exported["onnx"])
    entries = {entry.key: entry.value for entry in model.metadata_props} | {key: value}
    onnx.helper.set_model_props(model, {name: text for name, text in entries.items() if text is not None})
    onnx.save_model(model, tmp_path / "m.onnx")
    with pytest.raises(CheckpointError, match=said):
        load(tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"expr_str": "__import__('os').system('touch pwned')"}, "an expression that is no size"),
        ({"target": "os.system"}, "no operator on tensors"),
        ({"guards_code": ["print(1)"]}, "holds Python code"),
        ({"use_pickle": True}, "holds pickled values"),
    ],
)
def test_a_program_that_could_run_code_is_refused(exported, tmp_path, change, said):
    with zipfile.ZipFile(exported["torch"]) as archive:
        entries = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    graph = next(name for name in entries if name.endswith("models/model.json"))
    entries[graph] = json.dumps(json.loads(entries[graph]) | change).encode()
    with zipfile.ZipFile(tmp_path / "m.pt2", "w", zipfile.ZIP_STORED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    with pytest.raises(CheckpointError, match=said):
        load(tmp_path / "m.pt2")


def test_pickled_inputs_of_a_program_are_refused(exported, tmp_path):
    with zipfile.ZipFile(exported["torch"]) as archive:
        entries = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    inputs = next(name for name in entries if "sample_inputs" in name)
    torch.save(Path, tmp_path / "x.pt")
    entries[inputs] = (tmp_path / "x.pt").read_bytes()
    with zipfile.ZipFile(tmp_path / "m.pt2", "w", zipfile.ZIP_STORED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    with pytest.raises(CheckpointError, match="holds pickled values"):
        load(tmp_path / "m.pt2")


def test_options_that_a_graph_fixes_are_refused(exported):
    for options in ({"image_size": 64}, {"tta": True}, {"merge_tokens": 2}, {"engine": "openvino"}, {"device": "cuda"}):
        with pytest.raises(ConfigError, match=r"m\.onnx"):
            load(exported["onnx"], **options)


def test_check_measures_both_on_labelled_images(model_file, tmp_path, capfd):
    for name in CLASSES:
        (tmp_path / "data" / name).mkdir(parents=True)
        for n, photo in enumerate(load_sample_images().images):
            Image.fromarray(photo).rotate(40 * len(name)).resize((60, 50)).save(tmp_path / "data" / name / f"{n}.png")
    words = ["export", str(model_file), str(tmp_path / "m.onnx"), "--to", "onnx", "--check", str(tmp_path / "data")]
    assert main([*words, "--json", str(tmp_path / "report.json")]) == 0
    assert "changes for 0 of 6 images" in capfd.readouterr().err
    checked = json.loads((tmp_path / "report.json").read_text())["checked"]
    assert checked["onnx"]["top1"] == checked["PyTorch"]["top1"]
    assert checked["onnx"]["ece"] == pytest.approx(checked["PyTorch"]["ece"], abs=1e-4)
    assert checked["onnx"]["latency"] > 0


def test_a_class_map_is_that_of_explain(tmp_path, photos):
    """A further output for the predicted class of each image, in a batch of another size than the example's.

    The other formats take 10 and 20 s more, from the same trace; each export compares its file with PyTorch.
    """
    model = saved(tmp_path, pool="map", rules=False, **QUICK)
    file = tmp_path / "mapped.pt2"
    assert main(["export", str(model), str(file), "--to", "torch", "--class-map"]) == 0
    exported, classifier = load(file), load(model, device="cpu", engine="torch")
    pixels = np.stack([classifier.pipeline.pixels(Image.open(photo).convert("RGB")) for photo in photos])
    found = exported.exported.run_prepared(pixels)["class_map"]
    images = classifier.pipeline.normalise(torch.from_numpy(pixels).permute(0, 3, 1, 2))
    expected = GradientAttention()(classifier.model, images).values.numpy()
    assert found.shape == (3, 4, 6)
    np.testing.assert_allclose(found, expected, atol=1e-4 * expected.max())
    assert exported.predict(photos[0]).label == classifier.predict(photos[0]).label
