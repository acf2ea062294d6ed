"""Shards: what they hold is the folder they were made from, an interrupted job goes on, and damage is named."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from vitreous.data.batches.sampler import TrainSampler, Window
from vitreous.data.config import DataConfig
from vitreous.data.images.reading import read_image
from vitreous.data.images.stored import StoredImage
from vitreous.data.shards.listing import find_shards, images_of
from vitreous.data.shards.writing.destination import LocalDestination
from vitreous.data.shards.writing.writer import write_shards
from vitreous.data.sources.opening import open_source
from vitreous.errors import CheckpointError, DataError, UsageError

SHARD = 2000  # bytes: about ten images


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """60 digits in three classes, some as JPEG, in colour or with odd names, a copy, and a file that is no image."""
    root = tmp_path_factory.mktemp("photos") / "photos"
    for n, pixels in enumerate(load_digits().images[:60]):
        image = Image.fromarray((pixels * 15).astype("uint8")).resize((8 + n % 3, 9))
        name = {7: "new\nline.png", 8: "a.b: c.png"}.get(n, f"{n}.jpg" if n % 4 == 0 else f"{n}.png")
        (root / "abc"[n % 3]).mkdir(parents=True, exist_ok=True)
        (image.convert("RGB") if n % 5 == 0 else image).save(root / "abc"[n % 3] / name)
    shutil.copy(root / "a" / "3.png", root / "a" / "copy.png")
    (root / "b" / "broken.png").write_bytes(b"no image")
    return root


def pack(source: Path, dest: Path, **fields):
    return write_shards(DataConfig(str(source)), LocalDestination(dest), **{"shard_bytes": SHARD, **fields})


@pytest.fixture(scope="module")
def shards(folder) -> Path:
    written = pack(folder, folder.parent / "shards")
    assert [name for name, _ in written.unreadable] == ["b/broken.png"]
    assert (written.images, written.kept) == (61, 0)
    assert written.shards >= 6
    return folder.parent / "shards"


def test_shards_are_the_folder(folder, shards):
    one, other = (open_source(DataConfig(str(source), val_fraction=0.3)) for source in (folder, shards))
    for name in ("classes", "fingerprint", "order", "held_out", "channels", "native_size", "median_size"):
        assert getattr(one, name) == getattr(other, name), name
    for name, split in one.splits.items():
        assert split.names == other.splits[name].names
        for n in range(len(split)):
            assert np.array_equal(np.asarray(split.image(n)), np.asarray(other.splits[name].image(n)))


def test_the_folder_s_own_splits_are_kept(folder, tmp_path):
    for n, split in enumerate(("train", "val", "test")):
        shutil.copytree(folder, tmp_path / "photos" / split, ignore=lambda _, names, n=n: sorted(names)[4 + n :: 4])
    pack(tmp_path / "photos", tmp_path / "shards")
    one, other = (open_source(DataConfig(str(tmp_path / name))) for name in ("photos", "shards"))
    assert list(other.splits) == ["train", "val", "test"]
    assert one.order == other.order


def test_images_packed_without_a_label_are_no_class(folder, tmp_path):
    paths = sorted(folder.glob("?/*.*g"))
    rows = [f'"{path}",{path.parent.name if n % 2 else ""}\n' for n, path in enumerate(paths) if "\n" not in path.name]
    (tmp_path / "m.csv").write_text("path,label\n" + "".join(rows))
    pack(tmp_path / "m.csv", tmp_path / "s", needs_labels=False)
    table, packed = (
        open_source(DataConfig(str(tmp_path / name)), unlabelled="kept", several=True) for name in ("m.csv", "s")
    )
    assert packed.classes == ("a", "b", "c")
    assert packed.order == table.order
    assert packed.unlabelled.names == table.unlabelled.names
    left_out = open_source(DataConfig(str(tmp_path / "s")), unlabelled="left out")
    assert left_out.order == packed.order
    assert any("images without a label left out" in note for note in left_out.notes)
    with pytest.raises(DataError, match=r"images without a label, packed with --no-labels: pack the labelled ones"):
        open_source(DataConfig(str(tmp_path / "s")))
    whole = open_source(DataConfig(str(tmp_path / "s")), needs_labels=False)
    assert sum(map(len, whole.splits.values())) == len(rows) - 1  # one is broken


@pytest.fixture(scope="module")
def several(folder) -> tuple[Path, Path]:
    """A table in which an image has none, one or two of three labels, whose order is not that of their names."""
    root = folder.parent
    paths = [path for path in sorted(folder.glob("?/*.*g")) if "\n" not in path.name]
    rows = [f'"{path.relative_to(root)}",{n % 2},{int(n % 3 == 0)},{int(n % 7 == 0)}\n' for n, path in enumerate(paths)]
    (root / "several.csv").write_text("path,zebra,dog,cat\n" + "".join(rows))
    pack(root / "several.csv", root / "several")
    return root / "several.csv", root / "several"


def test_shards_of_several_labels_are_the_table(several):
    one, other = (open_source(DataConfig(str(source), val_fraction=0.3), several=True) for source in several)
    assert one.classes == other.classes == ("zebra", "dog", "cat")
    for name in ("fingerprint", "order", "held_out"):
        assert getattr(one, name) == getattr(other, name), name
    for name, split in one.splits.items():
        assert np.array_equal(split.labels, other.splits[name].labels)
        assert {row.sum() for row in split.labels} >= {0, 1, 2}
    with pytest.raises(DataError, match="may have several labels for an image, and this needs one"):
        open_source(DataConfig(str(several[1])))
    unasked = open_source(DataConfig(str(several[1])), needs_labels=False)
    assert unasked.classes == ("unlabelled",)


def test_a_table_without_any_label_is_packed_as_images_alone(folder, tmp_path):
    (tmp_path / "m.csv").write_text("path,labels\n" + "".join(f"{path},\n" for path in folder.glob("a/*.png")))
    with pytest.raises(DataError, match=r"m\.csv: no image has a label: add some\. --no-labels packs"):
        pack(tmp_path / "m.csv", tmp_path / "s")
    pack(tmp_path / "m.csv", tmp_path / "s", needs_labels=False)
    assert open_source(DataConfig(str(tmp_path / "s")), needs_labels=False).classes == ("unlabelled",)


@pytest.mark.parametrize("form", ["columns", "lists"])
def test_images_without_any_of_several_labels_are_packed_beside_the_others(folder, tmp_path, form):
    paths = [path for path in sorted(folder.glob("?/*.*g")) if "\n" not in path.name]
    if form == "columns":
        cells = [f",{n % 3 % 2},{n % 2}" if n % 4 else ",," for n in range(len(paths))]
        rows = [f'"{path}"{cell}\n' for path, cell in zip(paths, cells, strict=True)]
        (table := tmp_path / "m.csv").write_text("path,zebra,dog\n" + "".join(rows))
    else:
        sets = [{"labels": [["zebra"], ["zebra", "dog"], []][n % 3]} if n % 4 else {} for n in range(len(paths))]
        rows = [json.dumps({"path": str(path), **labels}) + "\n" for path, labels in zip(paths, sets, strict=True)]
        (table := tmp_path / "m.jsonl").write_text("".join(rows))
    with pytest.raises(
        DataError, match=r"do not say which labels their image has: .* --no-labels packs images without"
    ):
        pack(table, tmp_path / "s")
    pack(table, tmp_path / "s", needs_labels=False)
    one, other = (
        open_source(DataConfig(str(source), val_fraction=0.3), unlabelled="kept", several=True)
        for source in (table, tmp_path / "s")
    )
    assert one.several
    assert one.order == other.order
    assert one.unlabelled.names == other.unlabelled.names
    assert len(one.unlabelled) > 2
    with pytest.raises(DataError, match=r"images without a label, packed with --no-labels: pack the labelled ones"):
        open_source(DataConfig(str(tmp_path / "s")), several=True)
    assert open_source(DataConfig(str(tmp_path / "s")), needs_labels=False).classes == ("unlabelled",)
    assert json.loads((tmp_path / "s" / "index.json").read_text())["format_version"] == 3


def test_labels_that_cannot_be_read_are_left_out_of_shards_with_a_note(folder, tmp_path):
    (tmp_path / "m.csv").write_text("path,labels\n" + "".join(f"{path},['a']\n" for path in folder.glob("a/*.png")))
    written = pack(tmp_path / "m.csv", tmp_path / "s", needs_labels=False)
    assert any(note.startswith("labels are left out: ") for note in written.notes)
    assert open_source(DataConfig(str(tmp_path / "s")), needs_labels=False).classes == ("unlabelled",)


def test_any_tar_reader_finds_several_labels(several):
    found = []
    for shard in json.loads((several[1] / "index.json").read_text())["shards"]:
        with tarfile.open(several[1] / shard["file"]) as tar:
            texts = [tar.extractfile(member).read() for member in tar if member.name.endswith(".json")]
        assert [json.loads(text)["labels"] for text in texts] == shard["images"]["labels"]
        found += shard["images"]["labels"]
    assert {tuple(labels) for labels in found} >= {(), (0,), (0, 1), (1,), (1, 2)}


def _alone(index):
    index["shards"][0]["images"]["labels"] = [0] * len(index["shards"][0]["images"]["names"])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda index: index.pop("several_labels"), "the version is not valid"),
        (lambda index: index["shards"][0]["images"]["labels"].__setitem__(0, [1, 0]), "labels of .* is not valid"),
        (lambda index: index["shards"][0]["images"]["labels"].__setitem__(0, [0, 3]), "labels of .* is not valid"),
        (lambda index: index["shards"][0]["images"]["labels"].__setitem__(0, ["0"]), "labels of .* is not valid"),
        (_alone, "a label is not valid"),
        (lambda index: index.update(classes_have_order=False), "several labels is not valid"),
        (lambda index: index.update(without_labels=True), "the version is not valid"),
        (lambda index: index.update(classes=["cat", "cat", "dog"]), "a class is not valid"),
    ],
    ids=["one kind", "order", "range", "text", "one label", "no order", "no labels", "twice"],
)
def test_a_damaged_index_of_several_labels_is_one_error(several, tmp_path, change, reason):
    shutil.copytree(several[1], tmp_path / "s")
    index = json.loads((several[1] / "index.json").read_text())
    assert (index["format_version"], index["several_labels"]) == (2, True)
    change(index)
    (tmp_path / "s" / "index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match=reason):
        open_source(DataConfig(str(tmp_path / "s")), several=True)


def test_a_class_may_be_named_unlabelled(folder, tmp_path):
    shutil.copytree(folder / "a", tmp_path / "photos" / "a")
    shutil.copytree(folder / "b", tmp_path / "photos" / "unlabelled")
    pack(tmp_path / "photos", tmp_path / "s")
    assert open_source(DataConfig(str(tmp_path / "s"))).classes == ("a", "unlabelled")


def test_a_known_set_keeps_its_pixels_and_its_test_split(tmp_path):
    write_shards(DataConfig("digits"), LocalDestination(tmp_path / "s"), shard_bytes=1 << 20)
    known, packed = open_source(DataConfig("digits")), open_source(DataConfig(str(tmp_path / "s")))
    assert packed.classes == known.classes
    assert packed.channels == 1
    assert set(packed.splits["test"].names) == {f"{name}.png" for name in known.splits["test"].names}
    first = known.splits["test"].names.index(packed.splits["test"].names[0].removesuffix(".png"))
    expected = np.asarray(known.splits["test"].image(first))
    assert np.array_equal(np.asarray(packed.splits["test"].image(0)), expected)


def test_any_tar_reader_finds_images_and_labels(folder, shards):
    index = json.loads((shards / "index.json").read_text())
    for shard in index["shards"]:
        content = (shards / shard["file"]).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (shard["bytes"], shard["sha256"])
        with tarfile.open(shards / shard["file"]) as tar:
            members = {member.name: tar.extractfile(member).read() for member in tar}
        images = [name for name in members if not name.endswith(".cls")]
        for name, member, label in zip(shard["images"]["names"], images, shard["images"]["labels"], strict=True):
            assert members[member] == (folder / name).read_bytes()
            assert members[member.partition(".")[0] + ".cls"] == str(label).encode()
    assert {shard["file"].partition("-")[0] for shard in index["shards"]} == {"train", "val"}


@pytest.mark.parametrize("survived", [0, 1, 4])
def test_a_killed_job_goes_on_where_it_stopped(folder, shards, tmp_path, monkeypatch, survived):
    class Killed(BaseException):
        """Stands for the end of the process."""

    recorded = []

    def record(self, shard, digest, original=LocalDestination.record):
        if len(recorded) == survived:  # the shard is in its place, and not yet recorded
            (self.folder / ".train-000009.tar.1234.tmp").write_bytes(b"half")
            raise Killed
        original(self, shard, digest)
        recorded.append(shard.file)

    monkeypatch.setattr(LocalDestination, "record", record)
    with pytest.raises(Killed):
        pack(folder, tmp_path / "s", workers=1)
    monkeypatch.undo()
    assert not (tmp_path / "s" / "index.json").exists()
    before = {name: (tmp_path / "s" / name).stat().st_mtime_ns for name in recorded}
    assert pack(folder, tmp_path / "s").kept == survived
    assert before == {name: (tmp_path / "s" / name).stat().st_mtime_ns for name in recorded}
    assert {p.name: p.read_bytes() for p in (tmp_path / "s").iterdir()} == {
        p.name: p.read_bytes() for p in shards.iterdir()
    }


def test_shards_are_not_written_over_something_else(folder, shards, tmp_path, monkeypatch):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("keep me")
    with pytest.raises(UsageError, match="not empty"):
        pack(folder, tmp_path / "full")
    with pytest.raises(UsageError, match="--overwrite"):
        pack(folder, shards)
    monkeypatch.setattr(LocalDestination, "finish", lambda self, index: None)
    pack(folder, tmp_path / "s")
    with pytest.raises(UsageError, match="shard_bytes was 2000, now 3000"):
        pack(folder, tmp_path / "s", shard_bytes=3000)


def test_finished_shards_are_replaced_when_asked(folder, tmp_path):
    pack(folder, tmp_path / "s", shard_bytes=1000)
    write_shards(DataConfig(str(folder)), LocalDestination(tmp_path / "s", overwrite=True), shard_bytes=1 << 20)
    names = sorted(path.name for path in (tmp_path / "s").iterdir())
    assert names == ["index.json", "train-000000.tar", "val-000000.tar"]


def test_a_changed_byte_is_named_with_its_image(shards, tmp_path):
    shutil.copytree(shards, tmp_path / "s")
    image = list(images_of(find_shards(tmp_path / "s")))[3]
    content = bytearray(image.container.path.read_bytes())
    content[image.offset + image.length // 2] ^= 1
    image.container.path.write_bytes(content)
    with pytest.raises(DataError, match=f"{image.name}: its bytes in .* are not those of the index"):
        read_image(image)
    image.container.path.write_bytes(content[:-512])
    with pytest.raises(DataError, match="copy it again"):
        open_source(DataConfig(str(tmp_path / "s")))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda index: index.update(format_version=4), "format_version 4, this version of vitreous reads up to 3"),
        (lambda index: index.update(format_version=2), "the version is not valid"),
        (lambda index: index.update(format_version=2, several_labels=True), "a label is not valid"),
        (lambda index: index["shards"][0].update(file="../../etc/passwd"), "a file's name is not valid"),
        (lambda index: index["shards"][0]["images"]["offsets"].__setitem__(0, 1 << 40), "offsets of"),
        (lambda index: index["shards"][0]["images"]["offsets"].__setitem__(0, -1), "offsets of"),
        (lambda index: index["shards"][0]["images"]["labels"].__setitem__(0, 3), "labels of"),
        (lambda index: index["shards"][0]["images"]["lengths"].__setitem__(0, 1.5), "lengths of"),
        (lambda index: index["shards"][0]["images"]["names"].__setitem__(0, ""), "an image's name"),
        (lambda index: index["shards"][0]["images"]["digests"].__setitem__(0, "x" * 32), "a hash in"),
        (lambda index: index["shards"][0]["images"].pop("digests"), "it lacks 'digests'"),
        (lambda index: index.update(classes=[]), "a class is not valid"),
        (lambda index: index.update(shards=3), "is damaged"),
    ],
)
def test_a_damaged_index_is_one_error(shards, tmp_path, change, reason):
    shutil.copytree(shards, tmp_path / "s")
    index = json.loads((tmp_path / "s" / "index.json").read_text())
    change(index)
    (tmp_path / "s" / "index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match=reason):
        open_source(DataConfig(str(tmp_path / "s")))


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def test_tars_of_other_programs_are_read_as_they_are(folder, tmp_path):
    pictures = sorted(folder.glob("a/*.png"))[:8]
    for split in ("train", "val"):
        with tarfile.open(tmp_path / f"set-{split}-0000.tar", "w", format=tarfile.PAX_FORMAT) as tar:
            for n, path in enumerate(pictures):
                add(tar, f"x/{n:04d}.png", path.read_bytes())
                if n % 2:
                    add(tar, f"x/{n:04d}.cls", b"cat\n")
                else:
                    add(tar, f"x/{n:04d}.json", json.dumps({"label": 7}).encode())
            add(tar, "readme.txt", b"no image")
    data = open_source(DataConfig(str(tmp_path)))
    assert data.classes == ("7", "cat")
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 8, "val": 8}
    for n, name in enumerate(data.splits["val"].names):
        assert name == f"set-val-0000.tar/x/{n:04d}.png"
        assert np.array_equal(
            np.asarray(data.splits["val"].image(n)), np.asarray(Image.open(pictures[n]).convert("RGB"))
        )


def test_a_tar_that_cannot_be_read_by_offset_or_has_no_labels_is_refused(folder, tmp_path):
    for name, mode, reason in (("a.tar", "w:gz", "must be unpacked first"), ("b.tar", "w", "without a label")):
        place = tmp_path / name.partition(".")[0]
        place.mkdir()
        with tarfile.open(place / name, mode) as tar:
            tar.add(folder / "a" / "3.png", "3.png")
        for source in (place, place / name):
            with pytest.raises(DataError, match=reason):
                open_source(DataConfig(str(source)))


def test_parquet_of_images_is_read_as_it_is(folder, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pictures = [path for path in sorted(folder.glob("*/*.png")) if path.name != "broken.png"][:30]
    bytes_of = [{"bytes": path.read_bytes(), "path": path.name} for path in pictures]
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["cat", "dog"]}}
    table = pa.table({"image": bytes_of, "label": [n % 2 for n in range(30)]})
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    for split in ("train", "validation"):
        pq.write_table(table, tmp_path / f"{split}-00000-of-00001.parquet", row_group_size=4)
    data = open_source(DataConfig(str(tmp_path)))
    assert data.classes == ("cat", "dog")
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 30, "val": 30}
    assert int(data.splits["train"].shard_of().max()) == 7  # a row group is a shard
    for n in (29, 3, 17):
        assert np.array_equal(
            np.asarray(data.splits["val"].image(n)), np.asarray(Image.open(pictures[n]).convert("RGB"))
        )
    single = open_source(DataConfig(str(tmp_path / "train-00000-of-00001.parquet")))
    assert sum(map(len, single.splits.values())) == 30
    packed = pack(tmp_path, tmp_path.parent / f"{tmp_path.name}-packed")
    assert packed.images == 60


def test_a_tar_beside_images_or_folders_changes_nothing(folder, shards, tmp_path):
    shutil.copytree(folder / "a", tmp_path / "loose")
    for place in (tmp_path, tmp_path / "loose"):
        shutil.copy(shards / "train-000000.tar", place / "more.tar")
        assert find_shards(place) is None


SHARD_OF = np.repeat(np.arange(40), 25)


def test_an_epoch_mixes_a_window_of_shards_and_shows_each_image_once():
    sampler = TrainSampler(1000, 100, seed=3, window=Window.of(SHARD_OF, 5))
    order = sampler.order(2)
    assert sorted(order.tolist()) == list(range(1000))
    assert order.tolist() == TrainSampler(1000, 100, seed=3, window=Window.of(SHARD_OF, 5)).order(2).tolist()
    assert order.tolist() != sampler.order(3).tolist()
    for start in range(0, 1000, 25):  # as many images as one shard has
        shown = set(SHARD_OF[order[start : start + 25]].tolist())
        assert 3 <= len(shown) <= 8  # the window moves on by about one shard meanwhile
    sampler.seek(2, 7)
    resumed = np.concatenate([plan.indices for plan in sampler])
    assert resumed.tolist() == order[700:].tolist()


def test_few_shards_are_shuffled_like_files():
    assert Window.of(SHARD_OF, 40) is None
    with pytest.raises(CheckpointError, match="shuffle_shards was 5, now 6"):
        TrainSampler(1000, 100, window=Window.of(SHARD_OF, 6)).check(
            TrainSampler(1000, 100, window=Window.of(SHARD_OF, 5)).identity()
        )


def test_classes_stay_balanced_in_a_window():
    labels = (np.arange(1000) % 10 == 0).astype(np.int64)
    sampler = TrainSampler(1000, 100, seed=3, balance=labels, window=Window.of(SHARD_OF, 5))
    assert np.bincount(labels[sampler.order(0)]).tolist() == [500, 500]


def test_an_image_of_a_shard_is_a_path_with_both_names(shards):
    image = next(images_of(find_shards(shards)))
    assert isinstance(image, StoredImage)
    assert str(image).startswith(f"{shards}/train-000000.tar/")
