"""Graphs are stored in the user's cache folder, and none is used that another user could have made."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import PIL
import pytest
import torch
from engine_models import PIPELINE, info_of, model_of

import vitreous
from vitreous.engines import cache, openvino_engine
from vitreous.engines.cache import FOLDER, GraphCache
from vitreous.engines.check import CHECKED, agreement, check_images
from vitreous.engines.torch_engine import TorchEngine
from vitreous.errors import OutputError
from vitreous.predictor import Classifier

pytest.importorskip("openvino", reason="openvino is not installed: pip install -e '.[dev]'")

posix = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="only POSIX systems have owners and modes")


PACKAGES = ("numpy",)
CACHE = GraphCache(["x"])


def write_files(folder: Path) -> None:
    """Stand in for a converter."""
    (folder / "graph.xml").write_text("a" * 1_000)
    (folder / "graph.bin").write_bytes(bytes(1_000))


class Opened:
    """A model file opened with OpenVINO: its classifier, and the messages."""

    def __init__(self, file: Path, engine: str = "openvino", **options: object) -> None:
        self.messages: list[str] = []
        self.classifier = vitreous.load(file, device="cpu", engine=engine, tell=self.messages.append, **options)

    @property
    def converted(self) -> bool:
        self.classifier.prepare(1)
        return any("converting" in line for line in self.messages)


@pytest.fixture
def cache_dir(home) -> Path:
    """The folder of all graphs."""
    return home / ".cache" / "vitreous" / FOLDER


@pytest.fixture
def small(cache_dir) -> Path:
    """The folder of a small graph that no engine can run."""
    folder = CACHE.write("openvino", PACKAGES, write_files)
    assert CACHE.find("openvino", PACKAGES) == folder
    return folder


@pytest.fixture(scope="session")
def converted_once(tmp_path_factory) -> Path:
    """A cache folder with the graph of the small model, converted once per session."""
    home = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(home))
        model = model_of()
        Classifier(model, info_of(model), "cpu", engine="openvino").prepare(1)
    return home / "vitreous" / FOLDER


@pytest.fixture
def graph(converted_once, cache_dir) -> Path:
    """The folder of the small model's graph."""
    cache_dir.parent.mkdir(parents=True)
    shutil.copytree(converted_once, cache_dir)
    (folder,) = cache_dir.iterdir()
    return folder


def assert_right(model_file: Path, photos: list[np.ndarray]) -> None:
    expected = vitreous.load(model_file, device="cpu", engine="torch").logits(photos)
    found = vitreous.load(model_file, device="cpu", engine="openvino").logits(photos)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_a_graph_is_stored_in_the_users_folder_and_found_again(graph, model_file, photos):
    assert sorted(file.name for file in graph.iterdir()) == ["graph.bin", "graph.xml", "record.json"]
    assert not Opened(model_file).converted  # made from a model in memory, found for a file
    assert_right(model_file, photos)
    assert sorted(file.name for file in model_file.parent.iterdir()) == ["model.safetensors"]
    assert cache.digest(model_of()) != cache.digest(model_of(seed=1))


def test_the_cache_folder_that_xdg_names_is_used(home, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    assert CACHE.write("openvino", PACKAGES, write_files).parent == tmp_path / "elsewhere/vitreous" / FOLDER
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the specification says to ignore
    assert CACHE.find("openvino", PACKAGES) is None
    assert CACHE.write("openvino", PACKAGES, write_files).parent == home / ".cache/vitreous" / FOLDER


@pytest.fixture(scope="session")
def foreign(tmp_path_factory) -> Path:
    """OpenVINO's files for other weights."""
    folder = tmp_path_factory.mktemp("foreign")
    openvino_engine.convert(model_of(seed=5), PIPELINE.size, folder)
    return folder


def swap(graph: Path, foreign: Path) -> None:
    """Replace a graph's files by those of other weights, and update the digests in its record."""
    for file in foreign.iterdir():
        shutil.copyfile(file, graph / file.name)
    record = json.loads((graph / "record.json").read_text())
    record["files"] = {name: cache.digest_private(graph / name) for name in record["files"]}
    (graph / "record.json").write_text(json.dumps(record))


def test_a_graph_of_other_weights_with_a_matching_record_is_converted_again(graph, foreign, model_file, photos):
    swap(graph, foreign)  # only the user can do this; the check images detect it
    assert Opened(model_file).converted
    assert_right(model_file, photos)


def test_a_graph_beside_the_model_file_is_never_used(graph, foreign, model_file, photos):
    beside = model_file.parent / FOLDER
    for name in (graph.name, f"model-{graph.name}"):
        shutil.copytree(graph, beside / name)
        swap(beside / name, foreign)
    assert not Opened(model_file).converted
    assert_right(model_file, photos)
    shutil.rmtree(graph.parent)
    assert Opened(model_file).converted
    assert_right(model_file, photos)
    assert len(list(beside.iterdir())) == 2


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x40
    file.write_bytes(content)


def change_record(change):
    def damage(graph: Path) -> None:
        record = json.loads((graph / "record.json").read_text())
        change(record)
        (graph / "record.json").write_text(json.dumps(record))

    return damage


def linked(graph: Path, name: str) -> None:
    away = graph.parent.parent / f"away-{name}"
    shutil.move(graph / name, away)
    (graph / name).symlink_to(away)


def linked_folder(graph: Path) -> None:
    away = graph.parent.parent / "away"
    shutil.move(graph, away)
    graph.symlink_to(away, target_is_directory=True)


DAMAGE = {
    "truncated": lambda graph: os.truncate(graph / "graph.bin", 100),
    "flipped": lambda graph: flip(graph / "graph.bin"),
    "missing": lambda graph: (graph / "graph.xml").unlink(),
    "an extra file": lambda graph: (graph / "extra.bin").write_bytes(b"x"),
    "no record": lambda graph: (graph / "record.json").unlink(),
    "an invalid record": lambda graph: (graph / "record.json").write_text("{" * 10_000),
    "a record of other weights": change_record(lambda record: record["origin"]["made_from"].__setitem__(0, "0" * 64)),
    "a record of other code": change_record(lambda record: record["origin"].update(code="0" * 64)),
    "a record of other packages": change_record(lambda record: record["origin"]["versions"].update(numpy="1.0")),
    "a record of no files": change_record(lambda record: record.update(files={})),
    "a link for a file": lambda graph: linked(graph, "graph.bin"),
    "a link for the record": lambda graph: linked(graph, "record.json"),
    "a link for the folder": linked_folder,
    "a pipe for the record": lambda graph: ((graph / "record.json").unlink(), os.mkfifo(graph / "record.json")),
    "others may write a file": lambda graph: (graph / "graph.bin").chmod(0o666),
    "others may write the record": lambda graph: (graph / "record.json").chmod(0o620),
    "others may write the folder": lambda graph: graph.chmod(0o777),
}


@posix
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_graph_that_has_changed_is_converted_again(small, damage):
    damage(small)
    assert CACHE.find("openvino", PACKAGES) is None
    assert CACHE.write("openvino", PACKAGES, write_files) == small
    assert CACHE.find("openvino", PACKAGES) == small
    assert not small.is_symlink()


def open_to_others(cache_dir: Path) -> None:
    cache_dir.chmod(0o777)


def open_above(cache_dir: Path) -> None:
    cache_dir.parent.chmod(0o777)


def link(cache_dir: Path) -> None:
    shutil.move(cache_dir, cache_dir.parent / "away")
    cache_dir.symlink_to(cache_dir.parent / "away", target_is_directory=True)


def link_above(cache_dir: Path) -> None:
    shutil.move(cache_dir.parent, cache_dir.parent.parent / "away")
    cache_dir.parent.symlink_to(cache_dir.parent.parent / "away", target_is_directory=True)


def a_file(cache_dir: Path) -> None:
    shutil.rmtree(cache_dir)
    cache_dir.write_text("a file where the folder would be")


@posix
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (open_to_others, r"others may write to it \(mode 777\)"),
        (open_above, r"others may write to it \(mode 777\)"),
        (link, "a link, which is not followed"),
        (link_above, "a link, which is not followed"),
        (a_file, "not a folder"),
    ],
)
def test_a_cache_folder_open_to_others_is_refused(small, model_file, photos, change, reason):
    change(small.parent)
    with pytest.raises(
        OutputError, match=rf"cannot store a graph for openvino: '.*': {reason}. Use --engine torch, or"
    ):
        Opened(model_file).classifier.predict(photos[0])
    auto = Opened(model_file, "auto")
    auto.classifier.prepare(10**9)
    assert auto.classifier.prepare(10**9).name == "torch"
    assert any("cannot store" in line and "torch is used" in line for line in auto.messages)


@posix
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can change owners")
@pytest.mark.parametrize("which", ["graph", "file", "record", "cache"])
def test_files_of_another_user_are_not_used(small, which):
    parts = {"graph": small, "file": small / "graph.bin", "record": small / "record.json", "cache": small.parent}
    os.chown(parts[which], 12345, -1)
    if which == "cache":
        with pytest.raises(OutputError, match=r"belongs to user 12345, not to you \(user 0\)"):
            CACHE.find("openvino", PACKAGES)
        with pytest.raises(OutputError, match=r"belongs to user 12345, not to you \(user 0\)"):
            CACHE.write("openvino", PACKAGES, write_files)
    else:
        assert CACHE.find("openvino", PACKAGES) is None


@posix
def test_written_files_are_private_under_any_umask(cache_dir):
    before = os.umask(0)
    try:
        folder = CACHE.write("openvino", PACKAGES, write_files)
        cache.remember_speed(folder, "this machine", 2.0)
        assert CACHE.find("openvino", PACKAGES) == folder
    finally:
        os.umask(before)
    assert [path for path in (cache_dir, *cache_dir.rglob("*")) if path.stat().st_mode & 0o077] == []


def test_check_images_differ_each_time_and_detect_a_graph_made_to_fit_them():
    first, second = check_images(3, (32, 32)), check_images(3, (32, 32))
    assert first.shape == (3, 3, 32, 32)
    assert all(not torch.equal(one, other) for one, other in zip(first, second, strict=True))
    model = model_of()
    plain, other = TorchEngine(model, "float32"), TorchEngine(model_of(seed=5), "float32")
    normalised, known = PIPELINE.normalise(first), PIPELINE.normalise(second)

    def fitted(images):
        """Return correct results for the images of another check only."""
        is_known = torch.tensor([any(torch.equal(image, each) for each in known) for image in images])
        return tuple(torch.where(is_known[:, None], *both) for both in zip(plain(images), other(images), strict=True))

    assert agreement(fitted, known, plain(known), 1.0).within(CHECKED["float32"])
    assert not agreement(fitted, normalised, plain(normalised), 1.0).within(CHECKED["float32"])
    assert agreement(plain, normalised, plain(normalised), 1.0).within(CHECKED["float32"])


@pytest.mark.parametrize("row", [0, 1, 2])
def test_an_engine_that_is_wrong_on_one_image_disagrees(row):
    plain = TorchEngine(model_of(), "float32")
    images = PIPELINE.normalise(check_images(3, (32, 32)))

    def wrong(batch):
        logits, features = (each.clone() for each in plain(batch))
        if len(batch) > row:
            logits[row] += 1e-3 * torch.randn(5) * logits[row].abs().max()
        return logits, features

    assert not agreement(wrong, images, plain(images), 1.0).within(CHECKED["float32"])


def test_the_least_recently_used_graphs_are_removed_when_space_runs_out(home, monkeypatch):
    caches = [GraphCache([n]) for n in range(3)]
    for age, each in enumerate(caches[:2]):
        folder = each.write("openvino", PACKAGES, write_files)
        os.utime(folder / "record.json", (1_000_000 + age, 1_000_000 + age))
    assert caches[0].find("openvino", PACKAGES) is not None  # now the most recently used
    size = sum(file.stat().st_size for file in folder.iterdir())
    monkeypatch.setattr(cache, "_MOST_BYTES", 2.5 * size)
    caches[2].write("openvino", PACKAGES, write_files)
    assert [each.find("openvino", PACKAGES) is not None for each in caches] == [True, False, True]


def test_other_weights_sizes_code_and_packages_get_other_graphs(small, monkeypatch):
    assert GraphCache(["y"]).find("openvino", PACKAGES) is None
    assert CACHE.find("onnxruntime", PACKAGES) is None
    assert CACHE.find("openvino", ("numpy", "torch")) is None
    monkeypatch.setattr(cache, "_code", lambda: "0" * 64)
    assert CACHE.find("openvino", PACKAGES) is None


def test_the_next_conversion_removes_what_a_killed_one_left(small, cache_dir):
    dead, alive = cache_dir / ".openvino-0123.4567", cache_dir / ".openvino-0123.89ab"
    for unfinished in (dead, alive):
        unfinished.mkdir(parents=True)
        (unfinished / "graph.bin").write_bytes(bytes(100))
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(dead, (two_days_ago, two_days_ago))
    GraphCache(["y"]).write("openvino", PACKAGES, write_files)
    assert alive.exists()
    assert not dead.exists()


def test_a_home_that_cannot_be_written_is_reported(model_file, home, photos):
    home.write_text("not a folder")
    with pytest.raises(OutputError, match=r"cannot store a graph for openvino: .*Use --engine torch"):
        Opened(model_file).classifier.predict(photos[0])


def test_concurrent_conversions_leave_one_intact_graph(home, cache_dir):
    made = GraphCache(["x"])
    start = threading.Barrier(4)

    def convert(folder: Path) -> None:
        (folder / "graph.xml").write_text("a" * 100_000)
        start.wait(timeout=30)

    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(made.write("openvino", ("openvino",), convert))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == {made.find("openvino", ("openvino",))}
    assert len(found) == 4
    assert len(list(cache_dir.iterdir())) == 1


def test_a_remembered_speed_is_not_part_of_the_graph(small):
    cache.remember_speed(small, "this machine", 1.5)
    cache.remember_speed(small, "another", 0.5)
    assert cache.remembered_speed(small, "this machine") == 1.5
    assert cache.remembered_speed(small, "another") == 0.5
    assert CACHE.find("openvino", PACKAGES) == small


def test_the_version_of_a_package_with_another_distribution_name():
    assert cache._version("PIL") == PIL.__version__  # its distribution is Pillow
    assert cache._version("numpy") == np.__version__
