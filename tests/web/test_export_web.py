"""The files of a web export: what they hold, what is shared and checked, and what is refused."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from small import CLASSES, model_and_info, write_graph

from vitreous.errors import CheckpointError, OutputError, UsageError
from vitreous.web import page, runtime

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from vitreous.export import web  # noqa: E402
from vitreous.export.shared_weights import halve, is_quantised, share  # noqa: E402
from vitreous.export.web import FILES, export_web  # noqa: E402


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """The small model's graph; pages of this file have no class maps, which take seconds to trace."""
    folder = tmp_path_factory.mktemp("graph")
    model, info = model_and_info()
    write_graph(model, info, folder / "model.onnx")
    return SimpleNamespace(graph=folder / "model.onnx", info=info)


def run(graph: object, images: np.ndarray) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    return list(session.run(["probabilities", "sets"], {"images": images}))


def test_folder_has_page_runtime_graph_and_licence(small: SimpleNamespace, tmp_path: Path) -> None:
    found = export_web(small.graph, tmp_path / "site", title="Trees")
    names = {
        path.relative_to(tmp_path / "site").as_posix() for path in (tmp_path / "site").rglob("*") if path.is_file()
    }
    assert names == {"index.html", "runtime/LICENSE", *FILES.values()} - {FILES["explain"]}
    assert sorted(found.files) == sorted(tmp_path / "site" / name for name in names)
    assert found.bytes == sum(path.stat().st_size for path in found.files) < 5_000_000
    assert [each.name for each in tmp_path.iterdir()] == ["site"]
    images = np.random.default_rng(0).integers(0, 256, (2, 40, 50, 3), np.uint8)
    for one, other in zip(run(small.graph, images), run(tmp_path / "site/model.onnx", images), strict=True):
        assert np.array_equal(one, other)  # the graph of the folder is a whole export: it runs by itself


def test_page_knows_the_checksums_of_its_files(small: SimpleNamespace, tmp_path: Path) -> None:
    export_web(small.graph, tmp_path / "site")
    html = (tmp_path / "site/index.html").read_text("utf-8")
    stored = re.search(r'<script type="application/json" id="data">(.*?)</script>', html)
    assert stored
    model = json.loads(stored[1])["model"]
    assert model["classes"] == list(CLASSES)
    for each in model["files"].values():
        content = (tmp_path / "site" / each["path"]).read_bytes()
        assert len(content) == each["stored"]
        assert hashlib.sha256(gzip.decompress(content) if each["gzip"] else content).hexdigest() == each["sha256"]


def test_single_file_has_everything_inside(small: SimpleNamespace, tmp_path: Path) -> None:
    found = export_web(small.graph, tmp_path / "page.html")
    html = found.files[0].read_text("utf-8")
    assert found.files == [tmp_path / "page.html"]
    assert re.findall(r'id="file-(\w+)"', html) == ["predict", "weights", "script", "wasm"]
    assert "connect-src 'none'" in html


def test_pages_name_no_other_host(small: SimpleNamespace, tmp_path: Path) -> None:
    """Only comments and the runtime's own messages have addresses; the policy forbids all of them."""
    page_text = export_web(small.graph, tmp_path / "site").files[0].read_text("utf-8")
    served = b"".join(page.service_files().values()).decode()
    for text in (page_text, served):
        assert re.findall(r'(?:src|href|action)="(?!data:|page\.)[^"]*', text) == []
        assert set(re.findall(r"https?://[^\s),\"']+", text)) <= {"https://bids.github.io/colormap/"}


def test_script_and_style_have_the_checksums_of_the_policy() -> None:
    import base64

    text = page.local_page("Trees", {"classes": []}).decode()
    for part in (r"<style>(.*?)</style>", r'<script type="module">(.*?)</script>'):
        found = re.search(part, text, re.DOTALL)
        assert found
        assert base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode() in text[: text.index("<title>")]


def test_destinations_are_never_lost(small: SimpleNamespace, tmp_path: Path) -> None:
    export_web(small.graph, tmp_path / "site")
    with pytest.raises(UsageError, match="exists already: --overwrite"):
        export_web(small.graph, tmp_path / "site")
    export_web(small.graph, tmp_path / "site", overwrite=True)
    (tmp_path / "site/notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"holds other files \(notes.txt\)"):
        export_web(small.graph, tmp_path / "site", overwrite=True)
    assert (tmp_path / "site/notes.txt").read_text() == "mine"
    with pytest.raises(OutputError, match="does not exist"):
        export_web(small.graph, tmp_path / "no/where")
    with pytest.raises(UsageError, match="exists already"):
        export_web(small.graph, export_web(small.graph, tmp_path / "page.html").files[0])


def test_failures_leave_nothing(small: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = onnx.load(small.graph)
    del bare.metadata_props[:]
    onnx.save_model(bare, tmp_path / "bare.onnx")
    with pytest.raises(CheckpointError, match=r"bare.onnx' is not a file of `vitreous export`: its metadata lacks"):
        export_web(tmp_path / "bare.onnx", tmp_path / "site")
    with pytest.raises(CheckpointError, match=r"gone.onnx' cannot be read as ONNX"):
        export_web(tmp_path / "gone.onnx", tmp_path / "site")
    monkeypatch.setattr(web, "_LARGEST_PAGE", 1_000_000)
    with pytest.raises(OutputError, match="export to a folder"):
        export_web(small.graph, tmp_path / "page.html")
    assert [each.name for each in tmp_path.iterdir()] == ["bare.onnx"]


def test_a_rewritten_graph_with_other_numbers_is_refused(
    small: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaging(graphs: list[object], name: str) -> bytes:
        content = np.frombuffer(share(graphs, name), np.float32).copy()
        content[: len(content) // 2] *= 1.5
        return content.tobytes()

    monkeypatch.setattr(web, "share", damaging)
    with pytest.raises(CheckpointError, match="gives other probabilities"):
        export_web(small.graph, tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_shared_weights_are_stored_once_also_transposed() -> None:
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    weight, x = rng.normal(size=(32, 48)).astype(np.float32), rng.normal(size=(2, 32)).astype(np.float32)

    def graph(stored: np.ndarray, attributes: dict[str, int]) -> object:
        node = helper.make_node("Gemm", ["x", "w"], ["y"], **attributes)
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 32])]
        outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 48])]
        made = helper.make_graph([node], "g", inputs, outputs, [numpy_helper.from_array(stored, "w")])
        return helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)

    graphs = [graph(weight, {}), graph(weight.T.copy(), {"transB": 1})]
    content = share(graphs, "w.bin")
    assert len(content) == weight.nbytes
    for one in graphs:
        options = onnxruntime.SessionOptions()
        options.add_external_initializers_from_files_in_memory(["w.bin"], [content], [len(content)])
        session = onnxruntime.InferenceSession(one.SerializeToString(), options, providers=["CPUExecutionProvider"])
        assert np.allclose(session.run(None, {"x": x})[0], x @ weight, atol=1e-5)


def test_halved_weights_compute_in_float32(small: SimpleNamespace) -> None:
    graph = onnx.load(small.graph)

    def weights() -> int:
        return sum(len(each.raw_data) for each in graph.graph.initializer)

    before = weights()
    assert not is_quantised(graph)
    halve(graph)
    assert weights() < 0.55 * before
    images = np.random.default_rng(0).integers(0, 256, (1, 40, 50, 3), np.uint8)
    one, other = (run(each, images)[0] for each in (str(small.graph), graph.SerializeToString()))
    assert 0 < abs(one - other).max() < 0.02


def test_only_weights_make_a_graph_quantised(small: SimpleNamespace) -> None:
    from onnx import numpy_helper

    graph = onnx.load(small.graph)
    graph.graph.initializer.append(numpy_helper.from_array(np.array(128, np.uint8), "zero point of a resize"))
    assert not is_quantised(graph)
    graph.graph.initializer.append(numpy_helper.from_array(np.zeros((64, 64), np.int8), "weights"))
    assert is_quantised(graph)


def test_the_runtime_is_what_was_published(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (runtime.SCRIPT, runtime.WASM):
        assert runtime.runtime_file(name)[:2] == b"\x1f\x8b"
    assert b"MIT License" in runtime.license_text()
    original = runtime._stored
    monkeypatch.setattr(
        runtime, "_stored", lambda name: gzip.compress(b"else") if name.endswith(".gz") else original(name)
    )
    with pytest.raises(OutputError, match="onnxruntime-web has 4 bytes"):
        runtime.runtime_file(runtime.SCRIPT)
