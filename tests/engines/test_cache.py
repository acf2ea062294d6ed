"""Graphs are kept in the user's own cache folder, and none is used that somebody else could have made."""

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

posix = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="owners and modes are of POSIX systems")


PACKAGES = ("numpy",)
OWN = GraphCache(["x"])


def write_files(folder: Path) -> None:
    """What a converter leaves."""
    (folder / "graph.xml").write_text("a" * 1_000)
    (folder / "graph.bin").write_bytes(bytes(1_000))


class Opened:
    """A model file opened with OpenVINO: its classifier, and what was told."""

    def __init__(self, file: Path, engine: str = "openvino", **options: object) -> None:
        self.told: list[str] = []
        self.classifier = vitreous.load(file, device="cpu", engine=engine, tell=self.told.append, **options)

    @property
    def converted(self) -> bool:
        self.classifier.prepare(1)
        return any("converting" in line for line in self.told)


@pytest.fixture
def place(home) -> Path:
    """Where graphs are kept."""
    return home / ".cache" / "vitreous" / FOLDER


@pytest.fixture
def small(place) -> Path:
    """The folder of a graph of no engine."""
    folder = OWN.write("openvino", PACKAGES, write_files)
    assert OWN.find("openvino", PACKAGES) == folder
    return folder


@pytest.fixture(scope="session")
def converted_once(tmp_path_factory) -> Path:
    """A cache folder with the graph of the small model."""
    home = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(home))
        model = model_of()
        Classifier(model, info_of(model), "cpu", engine="openvino").prepare(1)
    return home / "vitreous" / FOLDER


@pytest.fixture
def graph(converted_once, place) -> Path:
    """The folder of the small model's graph."""
    place.parent.mkdir(parents=True)
    shutil.copytree(converted_once, place)
    (folder,) = place.iterdir()
    return folder


def assert_right(model_file: Path, photos: list[np.ndarray]) -> None:
    expected = vitreous.load(model_file, device="cpu", engine="torch").logits(photos)
    found = vitreous.load(model_file, device="cpu", engine="openvino").logits(photos)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_a_graph_is_kept_in_the_users_folder_and_found_again(graph, model_file, photos):
    assert sorted(file.name for file in graph.iterdir()) == ["graph.bin", "graph.xml", "record.json"]
    assert not Opened(model_file).converted  # of a file now, of no file then
    assert_right(model_file, photos)
    assert sorted(file.name for file in model_file.parent.iterdir()) == ["model.safetensors"]
    assert cache.digest(model_of()) != cache.digest(model_of(seed=1))


def test_the_cache_folder_that_xdg_names_is_used(home, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    assert OWN.write("openvino", PACKAGES, write_files).parent == tmp_path / "elsewhere/vitreous" / FOLDER
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, says the specification
    assert OWN.find("openvino", PACKAGES) is None
    assert OWN.write("openvino", PACKAGES, write_files).parent == home / ".cache/vitreous" / FOLDER


@pytest.fixture(scope="session")
def foreign(tmp_path_factory) -> Path:
    """OpenVINO's files of other weights."""
    folder = tmp_path_factory.mktemp("foreign")
    openvino_engine.convert(model_of(seed=5), PIPELINE.size, folder)
    return folder


def swap(graph: Path, foreign: Path) -> None:
    """Put the files of other weights in the place of a graph's, and their digests into its record."""
    for file in foreign.iterdir():
        shutil.copyfile(file, graph / file.name)
    record = json.loads((graph / "record.json").read_text())
    record["files"] = {name: cache.digest_private(graph / name) for name in record["files"]}
    (graph / "record.json").write_text(json.dumps(record))


def test_a_graph_of_other_weights_is_made_again_though_its_record_fits(graph, foreign, model_file, photos):
    swap(graph, foreign)  # only the user can, and then the check images tell
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
    held = bytearray(file.read_bytes())
    held[len(held) // 2] ^= 0x40
    file.write_bytes(held)


def of_record(change):
    def damage(graph: Path) -> None:
        record = json.loads((graph / "record.json").read_text())
        change(record)
        (graph / "record.json").write_text(json.dumps(record))

    return damage


def linked(graph: Path, name: str) -> None:
    away = graph.parent.parent / f"away-{name}"
    shutil.move(graph / name, away)
    (graph / name).symlink_to(away)


def linked_whole(graph: Path) -> None:
    away = graph.parent.parent / "away"
    shutil.move(graph, away)
    graph.symlink_to(away, target_is_directory=True)


DAMAGE = {
    "truncated": lambda graph: os.truncate(graph / "graph.bin", 100),
    "flipped": lambda graph: flip(graph / "graph.bin"),
    "gone": lambda graph: (graph / "graph.xml").unlink(),
    "one file more": lambda graph: (graph / "extra.bin").write_bytes(b"x"),
    "no record": lambda graph: (graph / "record.json").unlink(),
    "record is none": lambda graph: (graph / "record.json").write_text("{" * 10_000),
    "record of other weights": of_record(lambda record: record["origin"]["made_from"].__setitem__(0, "0" * 64)),
    "record of other code": of_record(lambda record: record["origin"].update(code="0" * 64)),
    "record of other packages": of_record(lambda record: record["origin"]["versions"].update(numpy="1.0")),
    "record of no files": of_record(lambda record: record.update(files={})),
    "a link for a file": lambda graph: linked(graph, "graph.bin"),
    "a link for the record": lambda graph: linked(graph, "record.json"),
    "a link for the folder": linked_whole,
    "a pipe for the record": lambda graph: ((graph / "record.json").unlink(), os.mkfifo(graph / "record.json")),
    "others may write a file": lambda graph: (graph / "graph.bin").chmod(0o666),
    "others may write the record": lambda graph: (graph / "record.json").chmod(0o620),
    "others may write the folder": lambda graph: graph.chmod(0o777),
}


@posix
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_graph_that_is_not_as_it_was_written_is_made_again(small, damage):
    damage(small)
    assert OWN.find("openvino", PACKAGES) is None
    assert OWN.write("openvino", PACKAGES, write_files) == small
    assert OWN.find("openvino", PACKAGES) == small
    assert not small.is_symlink()


def open_to_others(place: Path) -> None:
    place.chmod(0o777)


def open_above(place: Path) -> None:
    place.parent.chmod(0o777)


def link(place: Path) -> None:
    shutil.move(place, place.parent / "away")
    place.symlink_to(place.parent / "away", target_is_directory=True)


def link_above(place: Path) -> None:
    shutil.move(place.parent, place.parent.parent / "away")
    place.parent.symlink_to(place.parent.parent / "away", target_is_directory=True)


def a_file(place: Path) -> None:
    shutil.rmtree(place)
    place.write_text("a file where the folder would be")


@posix
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (open_to_others, r"others may write to it \(mode 777\)"),
        (open_above, r"others may write to it \(mode 777\)"),
        (link, "a link, which is not followed"),
        (link_above, "a link, which is not followed"),
        (a_file, "no folder"),
    ],
)
def test_a_cache_folder_that_is_not_the_users_alone_is_refused(small, model_file, photos, change, said):
    change(small.parent)
    with pytest.raises(OutputError, match=rf"graph for openvino cannot be kept: '.*': {said}. Use --engine torch, or"):
        Opened(model_file).classifier.predict(photos[0])
    auto = Opened(model_file, "auto")
    auto.classifier.prepare(10**9)
    assert auto.classifier.prepare(10**9).name == "torch"
    assert any("cannot be kept" in line and "torch is used" in line for line in auto.told)


@posix
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("which", ["graph", "file", "record", "place"])
def test_what_belongs_to_another_user_is_not_used(small, which):
    parts = {"graph": small, "file": small / "graph.bin", "record": small / "record.json", "place": small.parent}
    os.chown(parts[which], 12345, -1)
    if which == "place":
        with pytest.raises(OutputError, match=r"belongs to user 12345, not to you \(user 0\)"):
            OWN.find("openvino", PACKAGES)
        with pytest.raises(OutputError, match=r"belongs to user 12345, not to you \(user 0\)"):
            OWN.write("openvino", PACKAGES, write_files)
    else:
        assert OWN.find("openvino", PACKAGES) is None


@posix
def test_what_is_written_is_closed_to_others_under_any_umask(place):
    before = os.umask(0)
    try:
        folder = OWN.write("openvino", PACKAGES, write_files)
        cache.remember_speed(folder, "this machine", 2.0)
        assert OWN.find("openvino", PACKAGES) == folder
    finally:
        os.umask(before)
    assert [path for path in (place, *place.rglob("*")) if path.stat().st_mode & 0o077] == []


def test_check_images_are_others_each_time_and_see_a_graph_that_fits_one():
    first, second = check_images(3, (32, 32)), check_images(3, (32, 32))
    assert first.shape == (3, 3, 32, 32)
    assert all(not torch.equal(one, other) for one, other in zip(first, second, strict=True))
    model = model_of()
    plain, other = TorchEngine(model, "float32"), TorchEngine(model_of(seed=5), "float32")
    normalised, known = PIPELINE.normalise(first), PIPELINE.normalise(second)

    def fitted(images):
        """Right on the images of another check alone."""
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


def test_the_graphs_used_longest_ago_go_when_all_take_too_much_room(home, monkeypatch):
    caches = [GraphCache([n]) for n in range(3)]
    for age, each in enumerate(caches[:2]):
        folder = each.write("openvino", PACKAGES, write_files)
        os.utime(folder / "record.json", (1_000_000 + age, 1_000_000 + age))
    assert caches[0].find("openvino", PACKAGES) is not None  # used now
    size = sum(file.stat().st_size for file in folder.iterdir())
    monkeypatch.setattr(cache, "_MOST_BYTES", 2.5 * size)
    caches[2].write("openvino", PACKAGES, write_files)
    assert [each.find("openvino", PACKAGES) is not None for each in caches] == [True, False, True]


def test_other_weights_sizes_code_and_packages_get_graphs_of_their_own(small, monkeypatch):
    assert GraphCache(["y"]).find("openvino", PACKAGES) is None
    assert OWN.find("onnxruntime", PACKAGES) is None
    assert OWN.find("openvino", ("numpy", "torch")) is None
    monkeypatch.setattr(cache, "_code", lambda: "0" * 64)
    assert OWN.find("openvino", PACKAGES) is None


def test_what_a_conversion_left_that_was_killed_goes_with_the_next(small, place):
    dead, alive = place / ".openvino-0123.4567", place / ".openvino-0123.89ab"
    for aside in (dead, alive):
        aside.mkdir(parents=True)
        (aside / "graph.bin").write_bytes(bytes(100))
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(dead, (two_days_ago, two_days_ago))
    GraphCache(["y"]).write("openvino", PACKAGES, write_files)
    assert alive.exists()
    assert not dead.exists()


def test_a_home_that_cannot_be_written_is_told(model_file, home, photos):
    home.write_text("no folder")
    with pytest.raises(OutputError, match=r"graph for openvino cannot be kept: .*Use --engine torch"):
        Opened(model_file).classifier.predict(photos[0])


def test_several_that_convert_at_once_leave_one_whole_graph(home, place):
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
    assert len(list(place.iterdir())) == 1


def test_a_remembered_speed_is_no_part_of_the_graph(small):
    cache.remember_speed(small, "this machine", 1.5)
    cache.remember_speed(small, "another", 0.5)
    assert cache.remembered_speed(small, "this machine") == 1.5
    assert cache.remembered_speed(small, "another") == 0.5
    assert OWN.find("openvino", PACKAGES) == small


def test_a_package_that_was_installed_under_another_name_has_a_version_too():
    assert cache._version("PIL") == PIL.__version__  # of the distribution Pillow
    assert cache._version("numpy") == np.__version__
