"""Images without a label beside labelled ones: which are kept, their order, their loss, and what a run records."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch.nn import functional as F

from vitreous.audit.run import audit
from vitreous.checkpoint.model_file import load_model
from vitreous.cli.main import main
from vitreous.data.batches.sampler import UnlabelledOrder
from vitreous.data.config import AugmentConfig, DataConfig
from vitreous.data.sources.opening import open_source
from vitreous.errors import CheckpointError, ConfigError, DataError
from vitreous.runs.state_file import read_state
from vitreous.train.assembly import make_module
from vitreous.train.auxiliary.config import AuxConfig
from vitreous.train.console import Display
from vitreous.train.planning.plan import _step_flops, plan
from vitreous.train.setup import prepare

AUX = AuxConfig("mae", classify="whole", end=1.0, decoder_width=8, decoder_depth=1, decoder_heads=2)
LABELLED, TESTED, TOTAL = 100, 50, 400  # rows of the manifest


def write_rows(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label", "split"), *rows])


def read_rows(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))[1:]


def source_config(runs, out, source, **options):
    return runs.config(out, **({"data": DataConfig(str(source)), "aux": AUX, "batch_size": 40} | options))


def set_up(config):
    return prepare(config, (), Display(Console(file=io.StringIO())))


def opened(source, **options):
    return open_source(DataConfig(str(source)), several=True, **({"unlabelled": "kept"} | options))


def test_rows_without_a_label_are_set_aside_and_the_labelled_split_as_if_they_were_not_there(digits):
    data = opened(digits / "images.csv")
    assert len(data.unlabelled) == TOTAL - LABELLED - TESTED
    write_rows(digits / "labelled.csv", [row for row in read_rows(digits / "images.csv") if row[1]])
    alone = opened(digits / "labelled.csv")
    assert (data.fingerprint, data.order, data.classes) == (alone.fingerprint, alone.order, alone.classes)
    left_out = opened(digits / "images.csv", unlabelled="left out")
    assert left_out.unlabelled is None
    assert left_out.order == alone.order
    assert left_out.notes[-1].startswith("250 images without a label left out: `--aux mae`")
    with pytest.raises(DataError, match=r"images.csv: rows 152, 153, .* have no label"):
        open_source(DataConfig(str(digits / "images.csv")))


def test_an_audit_checks_their_files(digits, tmp_path):
    rows = [(digits / name, *rest) for name, *rest in read_rows(digits / "images.csv")]
    tested = rows[LABELLED][0]
    for name, source in (("tested.png", tested), ("trained.png", rows[0][0]), ("twice.png", digits / "399.png")):
        Image.open(source).resize((64, 64)).save(tmp_path / name)
        Image.open(source).resize((64, 64)).save(tmp_path / f"again-{name}")
    (tmp_path / "broken.png").write_bytes(b"no image")
    rows += [(tmp_path / "tested.png", 1, "test"), (tmp_path / "trained.png", 2, "train")]
    new = ("again-tested.png", "again-trained.png", "twice.png", "again-twice.png", "broken.png")
    rows += [(tmp_path / name, "", "") for name in new]
    write_rows(tmp_path / "images.csv", rows)
    result, _ = audit(DataConfig(str(tmp_path / "images.csv")))
    assert len(result.images) == TOTAL + 2 + len(new)
    assert "255 images without a label: files and copies checked" in result.notes
    dropped = {
        kind: [result.images[n].path.name for one in found for n in one.drop]
        for kind, found in result.by_kind().items()
    }
    assert dropped["leak"] == ["again-tested.png"]
    assert {"again-trained.png", "twice.png"} <= set(dropped["copies"])
    assert dropped["undecodable"] == ["broken.png"]
    assert "two-labels" not in dropped
    assert "unlabelled" not in "".join(one.text for one in result.findings)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_other_tables_may_lack_labels_too(digits, suffix):
    rows, path = read_rows(digits / "images.csv"), digits / f"images.{suffix}"
    if suffix == "parquet":
        pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        names, labels, splits = zip(*rows, strict=True)
        columns = {"path": names, "label": [label or None for label in labels], "split": [s or None for s in splits]}
        parquet.write_table(pa.table({name: pa.array(column) for name, column in columns.items()}), path)
    else:
        lines = ({"path": n, **({"label": label, "split": split} if label else {})} for n, label, split in rows)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found, expected = opened(path), opened(digits / "images.csv")
    assert found.unlabelled.names == expected.unlabelled.names
    assert found.order == expected.order


def test_copies_of_held_out_images_and_excluded_ones_are_not_learnt(digits, tmp_path):
    rows = read_rows(digits / "images.csv")
    tested, trained = rows[LABELLED][0], rows[0][0]
    beside = tmp_path / "beside"
    for name, place in ((tested, "copy.png"), (trained, "deep/known.png"), ("399.png", "fresh.png")):
        (beside / place).parent.mkdir(parents=True, exist_ok=True)
        (beside / place).write_bytes((digits / name).read_bytes())
    (beside / "broken.png").write_bytes(b"no image")
    listed = tmp_path / "exclude.txt"
    listed.write_text("398.png\n0.png\n")
    config = DataConfig(str(digits / "images.csv"), exclude=str(listed))
    data = open_source(config, several=True, unlabelled="kept", beside=str(beside))
    assert len(data.unlabelled) == TOTAL - LABELLED - TESTED - 1 + 2  # 0.png is excluded, so its copy is not known
    assert {"fresh.png", "deep/known.png"} <= set(data.unlabelled.names)
    assert not {"copy.png", "398.png", "broken.png"} & set(data.unlabelled.names)
    assert "1 unlabelled image also in test, left out: copy.png" in data.notes
    assert [path.name for path, _ in data.unreadable] == ["broken.png"]
    assert any(note.startswith("2 images excluded") for note in data.notes)
    assert not any("without an image" in note for note in data.notes)
    held = {digest for name in ("val", "test") for digest in data.splits[name].digests}
    assert not held & set(data.unlabelled.digests)


def put_noise(folder, *names):
    """Put small images of noise into a folder, under these names."""
    for n, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(n).integers(0, 256, (8, 8), np.uint8)
        Image.fromarray(pixels).save(folder / name)
    return folder


def test_folders_of_val_and_test_are_not_learnt_and_notes_name_their_source(digits, tmp_path):
    names = ("train/1/a.png", "unlabeled/b.png", "test/1/c.png", "other/d.png")
    stl = put_noise(tmp_path / "stl10", *names)
    (stl / "README").write_text("about the images")
    for source in (digits / "images.csv", "digits"):
        data = opened(source, beside=str(stl))
        assert {*names} & {*data.unlabelled.names} == {*names[:2]}
        assert "1 unlabelled image of val or test left out" in data.notes
        assert f"{stl}: 1 file ignored, not images (first: README)" in data.notes
        assert f"{stl}: 1 image ignored, beside the folders of the splits" in data.notes
    apart = put_noise(tmp_path / "apart", "val/a.png", "b.png")
    assert "val/a.png" not in opened(digits / "images.csv", beside=str(apart)).unlabelled.names
    held = put_noise(tmp_path / "held", "val/a.png", "test/b.png")
    with pytest.raises(DataError, match=rf"^{re.escape(str(held))} has no image to learn from, only 2 images"):
        opened("digits", beside=str(held))
    write_rows(tmp_path / "held.csv", [(held / "val/a.png", "", "val")])
    with pytest.raises(DataError, match=r"held.csv has no image to learn from, only 1 image of val or test: give"):
        opened("digits", beside=str(tmp_path / "held.csv"))


def test_files_without_a_label_that_cannot_be_read_are_listed_and_named_with_their_source(digits, tmp_path):
    rows = [(digits / name, *rest) for name, *rest in read_rows(digits / "images.csv") if rest[0]]
    write_rows(tmp_path / "gone.csv", [*rows, ("gone.png", "", ""), ("lost.png", "", "")])
    data = opened(tmp_path / "gone.csv")
    assert data.unlabelled is None
    assert [path.name for path, _ in data.unreadable] == ["gone.png", "lost.png"]
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "a.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=rf"^{re.escape(str(broken))}: none of 1 image can be read \(a.png: "):
        opened(digits / "images.csv", beside=str(broken))
    put_noise(broken, "b.png")
    data = opened(tmp_path / "gone.csv", beside=str(broken))
    assert data.unlabelled.names == ("b.png",)
    assert [path.name for path, _ in data.unreadable] == ["gone.png", "lost.png", "a.png"]
    strict = DataConfig(str(digits / "images.csv"), strict=True)
    with pytest.raises(DataError, match=rf"1 of 2 files of {re.escape(str(broken))} cannot be read"):
        open_source(strict, unlabelled="kept", beside=str(broken))


def test_exclusions_from_a_further_source_are_counted_and_name_it(digits, tmp_path):
    more = put_noise(tmp_path / "more", "a.png", "b.png")
    (tmp_path / "out.txt").write_text("a.png\n")
    config = DataConfig(str(digits / "images.csv"), exclude=str(tmp_path / "out.txt"))
    data = open_source(config, unlabelled="kept", beside=str(more))
    assert f"{more}: 1 image excluded by {tmp_path / 'out.txt'}" in data.notes
    assert "b.png" in data.unlabelled.names
    (tmp_path / "out.txt").write_text("a.png\nb.png\n")
    with pytest.raises(DataError, match=rf"excludes all of the 2 images of {re.escape(str(more))}: remove"):
        open_source(config, unlabelled="kept", beside=str(more))


def test_why_none_is_left_is_not_guessed(runs, tmp_path, digits):
    labelled = [row for row in read_rows(digits / "images.csv") if row[1]]
    write_rows(tmp_path / "few.csv", [(digits / name, *rest) for name, *rest in labelled])
    copies = tmp_path / "copies"
    copies.mkdir()
    shutil.copy(digits / labelled[0][0], copies)
    config = source_config(
        runs, tmp_path / "run", tmp_path / "few.csv", aux=AuxConfig("fixmatch", unlabelled=str(copies))
    )
    with pytest.raises(ConfigError, match=r"copies none is left: those of val or test, .* DATA, and those that cannot"):
        set_up(config)


def test_copies_are_found_by_their_pixels_where_a_known_dataset_has_no_files(digits):
    val = opened("digits").splits["val"]
    folder = digits / "of-val"
    folder.mkdir()
    for n in range(5):
        val.image(n).save(folder / f"{n}.png")
    Image.fromarray(np.full((8, 8), 7, np.uint8)).save(folder / "other.png")
    data = opened("digits", beside=str(folder))
    assert data.unlabelled.names == ("other.png",)
    assert any(note.startswith("5 unlabelled images also in val, left out") for note in data.notes)


def test_the_order_is_a_function_of_seed_epoch_and_step_and_shows_all_equally_often():
    order = UnlabelledOrder(num_images=10, per_step=4, batch_size=6, steps=3, seed=1)
    shown = [order.plan(epoch, step).indices.tolist() for epoch in range(5) for step in range(3)]
    flat = [n for step in shown for n in step]
    assert [sorted(flat[at : at + 10]) for at in range(0, 60, 10)] == [list(range(10))] * 6
    assert flat[:10] != flat[10:20]
    assert order.plan(3, 2).indices.tolist() == shown[11]  # whatever was asked for before
    parts = [order.plan(3, 2, part, 3) for part in range(3)]
    assert np.concatenate([part.indices for part in parts]).tolist() == shown[11]
    assert [part.offset for part in parts] == [6, 7, 8]  # behind the labelled images of the step
    other = UnlabelledOrder(num_images=10, per_step=4, batch_size=6, steps=3, seed=2)
    assert [other.plan(0, step).indices.tolist() for step in range(3)] != shown[:3]


def test_unlabelled_images_are_in_the_reconstruction_and_nowhere_else(runs, tmp_path, digits):
    setup = set_up(source_config(runs, tmp_path, digits / "images.csv", augment=AugmentConfig(flip=0.0)))
    loading = setup.data_module
    loading.setup("fit")
    batch = next(iter(loading.train_dataloader()))
    assert batch["images"].shape == batch["unlabelled"]["images"].shape == (40, 1, 8, 8)
    assert "labels" not in batch["unlabelled"]
    names = [setup.data.unlabelled.names[n] for n in batch["unlabelled"]["index"]]
    expected = np.stack([np.asarray(Image.open(digits / name))[None] for name in names])
    assert torch.equal(batch["unlabelled"]["images"], torch.from_numpy(expected))

    module = make_module(setup, lambda step: 0.0).train()
    module.manual_backward = lambda loss: loss.backward()
    drawn = []
    module.auxiliary.decoder.register_forward_hook(lambda _, given, made: drawn.append((given[3], made.detach())))
    loss = module.compute_gradients(batch, 0.0)
    terms = module.auxiliary.means()
    images, targets = module.augment.augment_batch(batch)
    torch.testing.assert_close(terms["classification"], float(F.cross_entropy(setup.model(images), targets).detach()))
    others = setup.pipeline.normalise(batch["unlabelled"]["images"])
    for name, shown, (hidden, made) in zip(("reconstruction", "unlabelled"), (images, others), drawn, strict=True):
        patches = F.unfold(shown, 4, stride=4).transpose(1, 2)  # (B, 4, 16)
        wanted = patches.gather(1, hidden[..., None].expand(-1, -1, 16))
        torch.testing.assert_close(terms[name], float((made - wanted).square().mean()))
    both = (terms["reconstruction"] + terms["unlabelled"]) / 2  # as many of each
    torch.testing.assert_close(float(loss), 0.1 * terms["classification"] + 0.9 * both)


def same_mask(images, *_):
    """Hide patches 1 and 2 of every image: masks are drawn for each micro-batch otherwise."""
    return tuple(torch.tensor([patches]).expand(len(images), -1) for patches in ([0, 3], [1, 2]))


def test_the_gradient_of_a_step_does_not_depend_on_its_micro_batches(runs, tmp_path, digits):
    found = []
    for accumulate in (1, 4):
        aux = dataclasses.replace(AUX, unlabelled_ratio=0.4)
        config = source_config(runs, tmp_path, digits / "images.csv", aux=aux, accumulate=accumulate)
        setup = set_up(config)
        setup.data_module.setup("fit")
        module = make_module(setup, lambda step: 0.0).train()
        module.manual_backward = lambda loss: loss.backward()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("vitreous.train.auxiliary.reconstruction.draw_mask", same_mask)
            for _, batch in zip(range(accumulate), setup.data_module.train_dataloader(), strict=False):
                module.compute_gradients(batch, 0.0)
        assert module.auxiliary.sums[1].tolist() == [40, 40, 16]
        found.append([p.grad for p in (*setup.model.parameters(), *setup.auxiliary.parameters())])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("memory_gb", [2.0, 0.0], ids=["memory", "files"])
def test_a_killed_run_ends_in_the_same_bits_and_records(runs, selected, tmp_path, digits, memory_gb):
    augment = AugmentConfig(flip=0.5, pad_crop=2, mixup=0.2, resized_crop=0.5)
    data = DataConfig(str(digits / "images.csv"), memory_gb=memory_gb, workers=0)
    for name in ("whole", "killed"):
        config = source_config(runs, tmp_path / name, "", data=data, augment=augment, batch_size=20)
        if name == "killed":
            runs.broken_off(config, 5)  # of four steps in each of two epochs
        with pytest.raises(runs.Killed):
            runs.train(config, resume=name == "killed", said=(said := []))
    whole, resumed = (read_state(tmp_path / name / "last.ckpt") for name in ("whole", "killed"))
    for part in ("model", "auxiliary"):
        assert all(torch.equal(whole[part][name], resumed[part][name]) for name in whole[part])
    columns = ("train_classification", "train_reconstruction", "train_unlabelled", "train_loss")
    assert [[row[name] for name in columns] for row in whole["history"]] == [
        [row[name] for name in columns] for row in resumed["history"]
    ]
    assert torch.equal(*selected)
    assert len(selected[0]) == len(opened(digits / "images.csv").splits["val"])
    assert "unlabelled 250 images, 20 in each step beside 20" in said[0]
    assert "of 20 labelled and 20 unlabelled images per step" in said[0]


def test_a_run_without_the_unlabelled_images_is_that_of_the_labelled_rows_alone(runs, selected, tmp_path, digits):
    none = dataclasses.replace(AUX, unlabelled_ratio=0.0)
    write_rows(tmp_path / "few.csv", [(digits / n, *rest) for n, *rest in read_rows(digits / "images.csv") if rest[0]])
    for aux in (none, AuxConfig()):
        for number, source in enumerate((digits / "images.csv", tmp_path / "few.csv")):
            config = source_config(runs, tmp_path / f"{aux.method}{number}", source, aux=aux, epochs=1)
            with pytest.raises(runs.Killed):
                runs.train(config, said=(said := []))
            assert ("250 images without a label left out" in said[0]) is (number == 0)
    assert torch.equal(*selected[:2])
    assert torch.equal(*selected[2:])


def test_the_report_and_the_model_file_count_the_unlabelled_images(runs, tmp_path, digits):
    config = source_config(runs, tmp_path / "run", digits / "images.csv", epochs=1)
    runs.train(config)
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    seen = report["data"]["unlabelled"]
    assert (seen["images"], seen["per_step"], seen["source"]) == (250, 40, None)
    assert sum(report["data"]["images"].values()) == LABELLED + TESTED
    assert sum(map(sum, report["scores"]["test"]["confusion"])) == TESTED
    _, info = load_model(tmp_path / "run" / "model.safetensors")
    assert info.provenance["data"]["unlabelled"] == seen


def test_a_run_is_not_resumed_with_other_unlabelled_images(runs, tmp_path, digits):
    copied, rows = tmp_path / "images.csv", read_rows(digits / "images.csv")
    write_rows(copied, [(digits / name, *rest) for name, *rest in rows])
    config = source_config(runs, tmp_path / "run", copied)
    runs.broken_off(config, 1)
    write_rows(copied, [(digits / name, *rest) for name, *rest in rows[:-1]])
    with pytest.raises(CheckpointError, match="the unlabelled images or their order have changed"):
        runs.train(config, resume=True)


def test_a_plan_counts_the_unlabelled_images(runs, tmp_path, digits):
    flops = []
    for ratio in (0.0, 1.0, 2.0):
        config = source_config(
            runs, tmp_path, digits / "images.csv", aux=dataclasses.replace(AUX, unlabelled_ratio=ratio)
        )
        flops.append(_step_flops(set_up(config))[0])
    torch.testing.assert_close(flops[2] - flops[0], 2 * (flops[1] - flops[0]))
    assert 0.3 * flops[0] < flops[1] - flops[0] < 0.7 * flops[0]
    found = plan(source_config(runs, tmp_path, digits / "images.csv"))
    assert found.pictures == {"train": 80, "val": 20, "test": 50, "unlabelled": 250}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unlabelled_ratio": -1.0}, "unlabelled_ratio is -1.0, it is a number of images"),
        ({"unlabelled_ratio": float("nan")}, "unlabelled_ratio is nan"),
        ({"unlabelled": "more/", "unlabelled_ratio": 0.0}, "leaves out the images of unlabelled more/"),
    ],
    ids=str,
)
def test_values_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(AUX, **options)


def test_sources_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(DataError, match="digits cannot be unlabelled images: give a folder"):
        opened("digits", beside="digits")
    write_rows(tmp_path / "none.csv", [("a.png", "", "")])
    with pytest.raises(DataError, match="has no row with a label: give some, or use `vitreous pretrain`"):
        opened(tmp_path / "none.csv")


def test_the_command_takes_the_images(capsys, digits):
    command = ["train", "digits", "--aux", "mae", "--unlabelled", str(digits), "--aux.unlabelled_ratio", "2"]
    assert main([*command, "--print-config"]) == 0
    assert f'unlabelled: "{digits}"\n  unlabelled_ratio: 2.0\n' in capsys.readouterr().out
    assert main(["train", "digits", "--unlabelled", str(digits)]) == 2
    assert "aux.unlabelled has no effect here: aux.method is none: set it" in capsys.readouterr().err
    assert main(["train", "digits", "--aux", "mae", "--unlabelled", "nowhere/"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "nowhere" in error
