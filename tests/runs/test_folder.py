"""What a run directory may hold before a run starts or resumes: links, leftovers, files of the user, damaged states."""

from __future__ import annotations

import dataclasses
import itertools
import os
import shutil
from pathlib import Path

import pytest
import torch

from vitreous.errors import CheckpointError, OutputError, TrainingError, UsageError
from vitreous.report.run_report import PAGE, PICTURES
from vitreous.runs.folder_content import FILES
from vitreous.runs.lock import NAME, locked
from vitreous.runs.state_file import read_state, write_state
from vitreous.train.resume.saving import load_newest


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """Copy the directory of a killed run to a given path."""
    made = []

    def copy_to(folder, runs):
        if not made:
            made.append(tmp_path_factory.mktemp("interrupted") / "run")
            runs.broken_off(runs.config(made[0]), 6)
        return Path(shutil.copytree(made[0], folder))

    return copy_to


def dangling(source, link):
    """Make a link whose target does not exist."""
    os.symlink(f"{source}-new", link)


@pytest.mark.parametrize("link", [os.symlink, os.link, dangling])
def test_training_writes_through_no_link_in_the_run_directory(tmp_path, runs, interrupted, selected, link):
    folder, outside = interrupted(tmp_path / "run", runs), Outside(tmp_path / "outside")
    outside.link(folder / "recipe.yaml", os.link if link is os.link else os.symlink)  # read before it is written
    for name in ("metrics.csv", "previous.ckpt", "model.safetensors"):
        outside.link(folder / name, link)
    with pytest.raises(runs.Killed):
        runs.train(runs.config(folder), resume=True)
    outside.check()
    assert not [path for path in folder.iterdir() if path.is_symlink() or path.lstat().st_nlink > 1]
    assert (folder / "metrics.csv").read_text().count("\n") == 3


def test_the_report_writes_through_no_link_in_the_run_directory(tmp_path, runs, interrupted):
    folder, outside = interrupted(tmp_path / "run", runs), Outside(tmp_path / "outside")
    names = ("model.safetensors", "example.png", "report.json", PAGE, *PICTURES)
    for name, link in zip(names, itertools.cycle((os.symlink, os.link, dangling)), strict=False):
        outside.link(folder / name, link)
    runs.train(runs.config(folder), resume=True)
    outside.check()
    assert not [path for path in folder.iterdir() if path.is_symlink() or path.lstat().st_nlink > 1]


class Outside:
    """A directory of the user's files, to which links in a run directory lead."""

    def __init__(self, folder):
        folder.mkdir()
        self.folder, self.before = folder, {}

    def link(self, path, link):
        """Replace a file of a run directory by a link to its content here."""
        content = path.read_bytes() if path.exists() else b"precious"
        (self.folder / path.name).write_bytes(content)
        path.unlink(missing_ok=True)
        link(self.folder / path.name, path)
        self.before[path.name] = content

    def check(self):
        assert {path.name: path.read_bytes() for path in self.folder.iterdir()} == self.before


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "folder"])
def test_a_lock_that_is_not_a_regular_file_is_refused(tmp_path, kind):
    precious, folder = tmp_path / "precious.txt", tmp_path / "run"
    precious.write_text("precious")
    folder.mkdir()
    make = {
        "link": lambda: (folder / NAME).symlink_to(precious),
        "dangling link": lambda: (folder / NAME).symlink_to(tmp_path / "new"),
        "pipe": lambda: os.mkfifo(folder / NAME),
        "folder": (folder / NAME).mkdir,
    }
    make[kind]()
    with pytest.raises(OutputError, match=r"run.lock' is .*: remove it, or use another --out"), locked(folder):
        pytest.fail("locked")
    assert precious.read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["precious.txt", "run"]


def test_a_hard_linked_lock_is_replaced_unless_it_is_held(tmp_path):
    precious, folder = tmp_path / "precious.txt", tmp_path / "run"
    precious.write_text("precious" * 99)
    folder.mkdir()
    os.link(precious, folder / NAME)
    with locked(folder):
        assert (folder / NAME).stat().st_nlink == 1
        os.link(folder / NAME, tmp_path / "backup")
        with pytest.raises(TrainingError, match="in use"), locked(folder):
            pytest.fail("locked twice")
    assert precious.read_text() == "precious" * 99


@pytest.mark.parametrize("name", ["tensorboard", "tensorboard/hparams.yaml", "wandb/latest", "mlflow.db"])
def test_links_of_loggers_that_lead_outside_are_refused(tmp_path, runs, name):
    link = tmp_path / "run" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError, match=rf"{name}' is a link that leads out of"):
        runs.train(runs.config(tmp_path / "run"))
    assert not (tmp_path / "elsewhere").exists()
    link.unlink()
    (link.parent / "inside").mkdir(exist_ok=True)
    link.symlink_to("inside")  # as wandb does
    runs.broken_off(runs.config(tmp_path / "run"), 1)


def test_only_unfinished_files_of_a_run_are_removed(tmp_path, runs):
    folder = tmp_path / "run"
    (folder / ".x.0a1b2c3d.tmp").mkdir(parents=True)
    (folder / ".last.ckpt.0a1b2c3d.tmp").mkdir()
    (folder / ".last.ckpt.00000000.tmp").write_bytes(b"half a state")
    (folder / ".diary.00000000.tmp").write_text("a user's")
    (folder / ".report.json.00000000.tmp").symlink_to(tmp_path)
    runs.broken_off(runs.config(folder), 1)
    assert sorted(path.name for path in folder.glob(".*")) == [
        *(".diary.00000000.tmp", ".last.ckpt.0a1b2c3d.tmp", ".report.json.00000000.tmp", ".x.0a1b2c3d.tmp"),
    ]


def test_a_run_without_its_recipe_resumes_from_its_checkpoint(tmp_path, runs, interrupted, selected):
    folder = interrupted(tmp_path / "run", runs)
    recipe = (folder / "recipe.yaml").read_text()
    (folder / "recipe.yaml").unlink()
    with pytest.raises(CheckpointError, match="different settings: epochs was 2, now 3"):
        runs.train(runs.config(folder, epochs=3), resume=True)
    with pytest.raises(runs.Killed):
        runs.train(runs.config(folder), resume=True)
    assert (folder / "recipe.yaml").read_text() == recipe
    assert read_state(folder / "last.ckpt")["trained"]


def test_resume_is_not_advised_where_nothing_can_be_resumed(tmp_path, runs):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model.safetensors").write_bytes(b"a model")
    with pytest.raises(UsageError, match=r"neither its recipe.yaml nor a checkpoint, so there is nothing to resume"):
        runs.train(runs.config(tmp_path / "run"), resume=True)
    (tmp_path / "run" / "recipe.yaml").mkdir()
    with pytest.raises(OutputError, match=r"recipe.yaml' cannot be read: a folder"):
        runs.train(runs.config(tmp_path / "run"), resume=True)


def test_files_of_the_user_stay(tmp_path, runs):
    for name in (*PICTURES, PAGE, "example.png", "unreadable.txt"):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / name).write_text("a user's")
        for resume in (False, True):
            with pytest.raises(UsageError, match=rf"files that a run would overwrite \({name}\): use another --out"):
                runs.train(runs.config(folder), resume=resume)
        assert {path.name: path.read_text() for path in folder.iterdir()} == {name: "a user's"}


def test_a_directory_in_the_place_of_a_file_is_refused_before_training(tmp_path, runs, interrupted):
    folder = interrupted(tmp_path / "run", runs)
    assert {path.name for path in folder.iterdir()} - {NAME} <= set(FILES)
    assert {*PICTURES, PAGE} <= set(FILES)
    (folder / "report.html").mkdir()
    with pytest.raises(
        OutputError, match=r"report.html' is a directory, but a run writes a file of that name: remove it"
    ):
        runs.train(runs.config(folder), resume=True)


def test_a_run_that_fails_before_training_leaves_no_directory(tmp_path, runs, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for out in ("a/b/run", None):
        with pytest.raises(TrainingError, match=r"used up before the first step: .*Give a larger --budget$"):
            runs.train(runs.config(out or "x", budget="0.01s") if out else _nameless(runs))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("a user's")
    with pytest.raises(TrainingError):
        runs.train(runs.config("mine", budget="0.01s"))
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def _nameless(runs):
    return dataclasses.replace(runs.config("x", budget="0.01s"), out=None)


@pytest.mark.parametrize(
    "change",
    [
        {"identity": []}, {"identity": {}}, {"epoch": "1"}, {"epoch": -1}, {"step": True}, {"parts": 0},
        {"threads": 0}, {"model": {}}, {"model": {"head.bias": 3}}, {"optimizer": {"state": {"0": {}}, "rates": []}},
        {"optimizer": {"state": 3}}, {"best": {}}, {"clock": []}, {"loss_sum": 0.5}, {"history": {}}, {"risen": None},
        {"history": 3}, {"loss_sum": torch.zeros(3, 4)}, {"trained": "yes"},
        {"step": 10**9}, {"epoch": 10**12}, {"parts": 10**9}, {"history": [1]},
        {"history": [{"x": 1.0}]}, {"seconds": {"train": "x"}}, {"extended": ["1\nepochs: 9"]},
    ],
    ids=str,
)  # fmt: skip
def test_a_forged_state_is_refused_in_one_line(tmp_path, runs, interrupted, selected, change):
    folder = interrupted(tmp_path / "run", runs)
    (folder / "previous.ckpt").unlink(missing_ok=True)
    write_state(folder / "last.ckpt", {**read_state(folder / "last.ckpt"), **change})
    with pytest.raises(CheckpointError) as caught:
        runs.train(runs.config(folder), resume=True)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["pipe", "folder", "sparse"])
def test_a_state_that_is_not_a_file_or_too_large_is_skipped_at_once(tmp_path, runs, interrupted, kind):
    folder = interrupted(tmp_path / "run", runs)
    (folder / "last.ckpt").rename(folder / "previous.ckpt")
    if kind == "sparse":
        with (folder / "last.ckpt").open("wb") as file:
            file.write(b"vitreous state 1\n")
            file.truncate(1 << 40)
    else:
        {"pipe": os.mkfifo, "folder": os.mkdir}[kind](folder / "last.ckpt")
    warnings = []
    path, _ = load_newest(folder, warnings.append)
    assert path.name == "previous.ckpt"
    assert len(warnings) == 1
    assert "last.ckpt" in warnings[0]
