"""The twenty faults of benchmarks/accuracy/audit.py in some of the flowers: each is found, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vitreous.audit.run import audit, exclusions
from vitreous.data.config import DataConfig
from vitreous.data.sources.opening import open_source


@pytest.fixture
def clean(flowers, tmp_path, benchmark) -> tuple[Path, list[Path]]:
    """A fifteenth of the flowers, and photographs that are not among them."""
    known = {  # of those linked here, the only ones that the audit of all has something to say about
        "train/roses/15922772266_1167a06620.jpg",
        "train/tulips/15922772266_1167a06620.jpg",
    }
    spare = benchmark.link_clean(flowers, tmp_path / "photos", known, spare=60, every=15)
    return tmp_path / "photos", spare


def test_every_planted_fault_is_found_and_nothing_else(clean, tmp_path, benchmark):
    root, spare = clean
    before = sorted((path, path.stat().st_mtime_ns) for path in root.rglob("*"))
    result, _ = audit(DataConfig(str(root)))
    assert benchmark.found_in(result) == set()
    assert sorted((path, path.stat().st_mtime_ns) for path in root.rglob("*")) == before
    planter = benchmark.Planter(root, spare)
    planter.plant()
    assert len(planter.expected) == 20
    result, _ = audit(DataConfig(str(root)))
    missed, extra = benchmark.compare(planter.expected, benchmark.found_in(result))
    assert (missed, extra) == ([], set())
    listed = tmp_path / "out.txt"
    listed.write_text("\n".join(exclusions(result)), encoding="utf-8")
    left, _ = audit(DataConfig(str(root), exclude=str(listed)))
    assert {finding.kind for finding in left.findings if finding.kind in ("leak", "copies", "two-labels")} == set()
    assert [finding.kind for finding in left.findings[: left.counts()["error"]]] == ["class-names"]
    data = open_source(DataConfig(str(root), exclude=str(listed)))
    assert data.unreadable == []
    names = {name for split in data.splits.values() for name in split.names}
    a, b = planter.classes[:2]
    assert f"val/{a}/p-1.png" in names  # the copy in train goes, what is measured stays
    assert f"train/{a}/p-1.jpg" not in names
    assert len({f"train/{b}/p-2.jpg", f"train/{b}/p-2b.jpg"} & names) == 1
    assert not {f"train/{a}/p-3.jpg", f"train/{b}/p-3.jpg"} & names
    assert not {f"train/{a}/p-5.jpg", f"train/{b}/p-5.jpg"} & names  # near duplicates under two labels go, as copies do


def test_what_was_seen_is_kept_and_a_change_is_seen(flowers, tmp_path, cache_home, benchmark):
    root = tmp_path / "photos"
    for label in ("daisy", "roses"):
        (root / label).mkdir(parents=True)
        for path in sorted((flowers / "val" / label).iterdir())[:12]:
            (root / label / path.name).symlink_to(path)
    first, _ = audit(DataConfig(str(root)))
    again, _ = audit(DataConfig(str(root)))
    assert (first.from_cache, again.from_cache) == (0, len(first.images))
    target = next(root.rglob("*.jpg"))
    content = target.read_bytes()
    target.unlink()
    target.write_bytes(content[: len(content) // 2])
    third, _ = audit(DataConfig(str(root)))
    assert third.from_cache == len(first.images) - 1
    name = target.relative_to(root).as_posix()
    assert [third.images[f.images[0]].name for f in third.by_kind()["truncated"]] == [name]
    (file,) = cache_home.rglob("*.npz")
    for damage in (b"", b"PK", file.read_bytes()[:-700], os.urandom(500)):
        file.write_bytes(damage)
        after, _ = audit(DataConfig(str(root)))
        assert after.from_cache == 0
        assert benchmark.found_in(after) == benchmark.found_in(third)
    assert audit(DataConfig(str(root)), fresh=True)[0].from_cache == 0
    assert audit(DataConfig(str(root)))[0].from_cache == len(first.images)
    file.unlink()
    file.parent.chmod(0o500)
    try:
        unkept, _ = audit(DataConfig(str(root)))
    finally:
        file.parent.chmod(0o700)
    assert os.geteuid() == 0 or "cannot be cached" in unkept.notes[0]
    assert len(unkept.images) == len(first.images)


def test_the_cache_is_never_in_the_data(clean, monkeypatch):
    root, _ = clean
    monkeypatch.setenv("XDG_CACHE_HOME", str(root / "train"))
    before = sorted(root.rglob("*"))
    audit(DataConfig(str(root)))
    assert sorted(root.rglob("*")) == before


def test_a_folder_without_splits_is_judged_by_the_split_that_training_makes(flowers, tmp_path, benchmark):
    photos = sorted((flowers / "val/daisy").glob("*.jpg"))[:30]
    for n, path in enumerate(photos):
        (tmp_path / "p" / "ab"[n % 2]).mkdir(parents=True, exist_ok=True)
        (tmp_path / "p" / "ab"[n % 2] / path.name).symlink_to(path)
    data = open_source(DataConfig(str(tmp_path / "p")))
    held = data.splits["val"].names[0]
    # The same image with other bytes, until training would put it on the other side.
    for quality in range(60, 96):
        image = benchmark.saved(benchmark.Image.open(tmp_path / "p" / held), "JPEG", quality=quality)
        copy = tmp_path / "p" / Path(held).parent / "copy.jpg"
        copy.write_bytes(image)
        data = open_source(DataConfig(str(tmp_path / "p")))
        if any(name.endswith("copy.jpg") for name in data.splits["train"].names):
            break
    result, _ = audit(DataConfig(str(tmp_path / "p")))
    (leak,) = result.by_kind()["near-leak"]
    assert {result.images[n].name for n in leak.images} == {held, copy.relative_to(tmp_path / "p").as_posix()}
    assert [result.images[n].name for n in leak.drop] == [copy.relative_to(tmp_path / "p").as_posix()]


def test_audit_and_training_agree_on_sides_and_on_what_is_left_out(flowers, tmp_path):
    photos = sorted(flowers.glob("val/*/*.jpg"))[:60]
    for n, path in enumerate(photos):
        folder = tmp_path / "p" / ("rare" if n == 59 else "ab"[n % 2])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{n}.jpg").write_bytes(path.read_bytes()[: 900 if n % 20 == 0 else None])
    (tmp_path / "p" / "b" / "again.jpg").write_bytes((tmp_path / "p" / "a" / "2.jpg").read_bytes())
    for config in (
        DataConfig(str(tmp_path / "p")),
        DataConfig(str(tmp_path / "p"), val_fraction=0.35),
        DataConfig(str(tmp_path / "p"), split="hash"),
    ):
        data, (result, _) = open_source(config), audit(config)
        trained = {name: side for side, split in data.splits.items() for name in split.names}
        assert {one.name: one.split for one in result.images if not one.facts.reason} == trained
        unusable = {str(one.path) for one in result.images if one.facts.reason}
        assert unusable == {str(path) for path, _ in data.unreadable}
        assert len(unusable) == 3
        assert config.split == "hash" or [one.split for one in result.images if one.label == "rare"] == ["train"]
        assert "class-unknown" not in result.by_kind()


def test_a_list_keeps_what_an_earlier_one_left_out(flowers, tmp_path):
    photos = sorted((flowers / "val/daisy").glob("*.jpg"))[:24]
    for n, path in enumerate(photos):
        (tmp_path / "p" / "ab"[n % 2]).mkdir(parents=True, exist_ok=True)
        (tmp_path / "p" / "ab"[n % 2] / f"{n}.jpg").symlink_to(path)
    (tmp_path / "p" / "a" / "same.jpg").symlink_to(photos[0])
    earlier = tmp_path / "earlier.txt"
    earlier.write_text("# mine\na/4.jpg\n\n")
    result, _ = audit(DataConfig(str(tmp_path / "p"), exclude=str(earlier)))
    lines = list(exclusions(result, str(earlier)))
    assert lines[1:5] == ["", f"# already excluded by {earlier}", "# mine", "a/4.jpg"]
    (tmp_path / "both.txt").write_text("\n".join(lines) + "\n")
    data = open_source(DataConfig(str(tmp_path / "p"), exclude=str(tmp_path / "both.txt")))
    kept = {name for split in data.splits.values() for name in split.names}
    assert kept == {f"{'ab'[n % 2]}/{n}.jpg" for n in range(24) if n != 4}


def test_a_manifest_that_lists_files_twice(flowers, tmp_path):
    photos = sorted((flowers / "val/roses").glob("*.jpg"))[:16]
    rows = [f"{path},{'one' if n % 2 else 'two'},{'val' if n % 4 > 1 else 'train'}" for n, path in enumerate(photos)]
    rows += [
        f"{photos[0]},one,train",
        f"{photos[4]},two,val",
        f"{photos[9]},one,train",
        f"{tmp_path}/gone.jpg,one,train",
    ]
    (tmp_path / "l.csv").write_text("path,label,split\n" + "\n".join(rows) + "\n")
    result, _ = audit(DataConfig(str(tmp_path / "l.csv")))
    found = {
        kind: [sorted({result.images[n].path.name for n in one.images}) for one in findings]
        for kind, findings in result.by_kind().items()
        if kind not in ("few", "listing")
    }
    assert found == {
        "unopened": [["gone.jpg"]],
        "leak": [[photos[4].name]],
        "two-labels": [[photos[0].name]],
        "copies": [[photos[9].name]],
    }
    drops = {finding.kind: finding.drop for finding in result.findings}
    assert len(drops["two-labels"]) == 2  # one name, both rows
    assert drops["leak"] == drops["copies"] == ()  # no name tells one row from the other


def test_known_sets_are_audited_in_memory():
    result, copies = audit(DataConfig("digits"))
    assert len(result.images) == 1797
    assert result.counts()["error"] == 0
    assert copies.near == []  # handwritten digits of 8 pixels look alike, and are not compared
    assert result.to_dict()["pictures"] == 1797
