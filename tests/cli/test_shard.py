"""`vitreous shard`, and the verbs that read what it writes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits


@pytest.fixture
def photos(tmp_path, monkeypatch) -> Path:
    """40 digits of two classes, one of them twice in different classes, and a file that is no image."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for n, pixels in enumerate(load_digits().images[:40]):
        folder = tmp_path / "photos" / ("zero", "one")[n % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * 15).astype("uint8")).save(folder / f"{n}.png")
    shutil.copy(tmp_path / "photos" / "zero" / "0.png", tmp_path / "photos" / "one" / "again.png")
    (tmp_path / "photos" / "zero" / "broken.png").write_bytes(b"no image")
    return tmp_path / "photos"


def to_6_places(number: str) -> float:
    """Read a number without its last bits, which the sums of another batch may change."""
    return round(float(number), 6)


def test_every_verb_gives_for_shards_what_it_gives_for_the_folder(vitreous, photos, model_file):
    run = vitreous("shard", photos, "shards", "--json", "-")
    assert run.returncode == 0, run.stderr
    document = json.loads(run.stdout)
    assert [document[name] for name in ("images", "shards", "kept")] == [41, 2, 0]
    assert [one["path"] for one in document["unreadable"]] == ["zero/broken.png"]
    assert "unreadable: 1 file left out (first: zero/broken.png:" in run.stderr
    (photos / "zero" / "broken.png").unlink()
    found, engine = {}, ("--engine", "torch")  # auto may take another one for the second data
    for data in (photos, "shards"):
        assert vitreous("evaluate", model_file, data, *engine, "--json", f"{Path(data).name}.json").returncode == 0
        assert vitreous("predict", model_file, data, *engine, "-o", f"{Path(data).name}.jsonl").returncode == 0
        assert vitreous("embed", model_file, data, *engine, "-o", f"{Path(data).name}.npz").returncode == 0
        assert vitreous("audit", data, "--json", f"{Path(data).name}-audit.json").returncode == 0
        lines = [json.loads(line) for line in Path(f"{Path(data).name}.jsonl").read_text().splitlines()]
        vectors = np.load(f"{Path(data).name}.npz")
        audit = json.loads(Path(f"{Path(data).name}-audit.json").read_text())
        found[str(data)] = (
            json.loads(Path(f"{Path(data).name}.json").read_text(), parse_float=to_6_places)["scores"],
            sorted((Path(line["path"]).name, line["label"]) for line in lines),
            {Path(str(path)).name: row.round(4).tolist() for path, row in zip(*vectors.values(), strict=True)},
            {kind: audit["counts"][kind] for kind in ("error", "warning")},
        )
    one, other = found.values()
    assert one == other
    assert one[3]["error"] == 1  # one image under two labels


def test_an_interrupted_job_and_a_taken_folder_are_told(vitreous, photos):
    assert vitreous("shard", photos, photos).returncode == 2
    assert vitreous("shard", photos, "shards").returncode == 0
    again = vitreous("shard", photos, "shards")
    assert again.returncode == 2
    assert "--overwrite replaces them" in again.stderr
    assert vitreous("shard", photos, "shards", "--overwrite", "--shard-size", "1").returncode == 0
    assert vitreous("shard", photos, "other", "--json", "shards/train-000000.tar").returncode == 2


def test_images_without_labels_are_packed_when_asked(vitreous, photos, tmp_path):
    loose = tmp_path / "loose"
    loose.mkdir()
    for path in sorted(photos.glob("one/*.png"))[:5]:
        shutil.copy(path, loose)
    assert vitreous("shard", loose, "s").returncode == 1
    assert vitreous("shard", loose, "s", "--no-labels").returncode == 0
    assert json.loads(Path("s/index.json").read_text())["classes"] == ["unlabelled"]


def test_training_on_shards_of_several_labels_is_that_on_the_table(vitreous, photos, tmp_path):
    paths = sorted(path.relative_to(tmp_path) for path in photos.rglob("*.png"))
    sets = ("cat;dog", "cat", "dog", "")
    (tmp_path / "m.csv").write_text("path,labels\n" + "".join(f"{p},{sets[n % 4]}\n" for n, p in enumerate(paths)))
    assert vitreous("shard", "m.csv", "s").returncode == 0
    for data, out in (("m.csv", "table"), ("s", "shards")):
        run = vitreous("train", data, "--recipe=digits", "--epochs=1", "--out", out)
        assert run.returncode == 0, run.stderr
        run = vitreous("evaluate", out, data, "--json", f"{out}.json")
        assert run.returncode == 0, run.stderr
    one, other = (json.loads((tmp_path / name / "report.json").read_text()) for name in ("table", "shards"))
    assert one["scores"] == other["scores"]
    one, other = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("table", "shards"))
    assert one["scores"] == other["scores"]
    assert vitreous("shard", "m.csv", "u", "--no-labels").returncode == 0  # for pretraining
    assert Path("u/index.json").read_bytes() == Path("s/index.json").read_bytes()  # every image has its labels


def test_select_asks_for_the_files_themselves(vitreous, photos, model_file):
    assert vitreous("shard", photos, "s").returncode == 0
    for data in ("s", "s/train-000000.tar"):
        run = vitreous("select", model_file, data, "-o", "t.csv", "--count", "2")
        assert run.returncode == 2
        assert f"DATA is '{data}', which has shards: give the folder of images" in run.stderr


def test_data_in_the_folder_of_the_shards_is_never_removed(vitreous, photos, tmp_path):
    assert vitreous("shard", photos, "shards").returncode == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "shards").iterdir()}
    name = next(name for name in before if name.endswith(".tar"))
    run = vitreous("shard", f"shards/{name}", "shards", "--overwrite")
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith("vitreous: DATA lies in DEST, 'shards', which the shards replace: name another folder")
    assert {path.name: path.read_bytes() for path in (tmp_path / "shards").iterdir()} == before
