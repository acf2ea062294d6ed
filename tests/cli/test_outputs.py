"""Output files of every verb: rejected before any work if a file would be lost; and JSON documents."""

import json
import os
import shutil
import stat
from pathlib import Path

import pytest

from vitreous.checkpoint.model_file import load_model

TINY = [f"--model.{field}" for field in ("width=16", "depth=1", "heads=1", "mlp_dim=16", "patch_size=4")]
RUN = ["--epochs=1", "--batch-size=64", *TINY, "--model.stem=patch", "--device=cpu", "--precision=float32"]

COMMANDS = {
    "predict -o": ["predict", "MODEL", "DATA", "-o"],
    "predict --json": ["predict", "MODEL", "DATA", "--json"],
    "embed -o": ["embed", "MODEL", "DATA", "-o"],
    "embed --json": ["embed", "MODEL", "DATA", "-o", "other.npy", "--json"],
    "evaluate --json": ["evaluate", "MODEL", "DATA", "--split=all", "--json"],
    "probe --json": ["probe", "MODEL", "DATA", "--json"],
    "audit --json": ["audit", "DATA", "--json"],
    "audit --html": ["audit", "DATA", "--html"],
    "audit --write-exclude": ["audit", "DATA", "--write-exclude"],
    "plan --json": ["plan", "DATA", *RUN, "--json"],
    "train --json": ["train", "DATA", *RUN, "--out=run", "--json"],
    "train --show-batch": ["train", "DATA", *RUN, "--show-batch"],
    "finetune --json": ["finetune", "DATA", "--from=MODEL", "--out=run", "--json"],
    "replay --json": ["replay", "FILE", "--json"],
    "convert": ["convert", "MODEL", "--to=google", "--activation=gelu-tanh"],
    "convert --json": ["convert", "MODEL", "other.npz", "--to=google", "--json"],
    "models --json": ["models", "--json"],
}
SUFFIX = {"embed -o": ".npy", "train --show-batch": ".png", "convert": ".npz"}


@pytest.fixture
def words(model_file, digits, tmp_path):
    """Build a command with the model and the images of the test."""
    shutil.copy(model_file, tmp_path / "m.safetensors")
    (tmp_path / "file.replay").write_bytes(b"x")
    own = {"MODEL": "m.safetensors", "DATA": digits.name, "FILE": "file.replay", "--from=MODEL": "--from=m.safetensors"}
    return lambda name, *more: [*(own.get(word, word) for word in COMMANDS[name]), *map(str, more)]


@pytest.mark.parametrize("name", COMMANDS)
def test_existing_files_are_rejected_before_any_work(vitreous, words, tmp_path, name, monkeypatch):
    monkeypatch.setattr("PIL.Image.open", None)  # any work on images would end as a bug
    out = tmp_path / f"out{SUFFIX.get(name, '.json')}"
    out.write_text("precious")
    run = vitreous(*words(name, out.name))
    assert (run.returncode, run.stdout) == (2, ""), run.stderr
    assert run.stderr == f"vitreous: '{out.name}' exists already: --overwrite replaces it, or name another file\n"
    assert out.read_text() == "precious"
    assert not (tmp_path / "run").exists()


def own_inputs(tmp_path: Path, name: str) -> list[Path]:
    """The input files of a command."""
    image = next((tmp_path / "digits-folder").rglob("*.png"))
    return [
        *([tmp_path / "m.safetensors"] if "MODEL" in " ".join(COMMANDS[name]) else []),
        *([image] if "DATA" in COMMANDS[name] else []),
        *([tmp_path / "file.replay"] if "FILE" in COMMANDS[name] else []),
    ]


@pytest.mark.skipif(os.name == "nt", reason="links as POSIX has them")
@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "models --json"])
def test_no_command_overwrites_its_input(vitreous, words, tmp_path, name):
    for n, file in enumerate(own_inputs(tmp_path, words(name) and name)):
        before = file.read_bytes()
        for kind in ("symbolic_to", "hardlink_to"):
            out = tmp_path / f"{n}{kind}{SUFFIX.get(name, '.json')}"
            (out.symlink_to if kind == "symbolic_to" else out.hardlink_to)(file)
            run = vitreous(*words(name, out.name, "--overwrite"))
            assert run.returncode == 2, run.stderr
            assert f"'{out.name}' is an input of this command" in run.stderr
            assert file.read_bytes() == before


def test_lists_and_manifests_are_inputs_too(vitreous, words, digits, tmp_path):
    image = next(digits.rglob("*.png"))
    (tmp_path / "labels.csv").write_text(
        "path,label\n" + "".join(f"{file},{file.parent.name}\n" for file in sorted(digits.rglob("*.png")))
    )
    (tmp_path / "out.txt").write_text(f"{image.name}\n")
    config = tmp_path / "recipe.yaml"
    config.write_text("epochs: 1\n")
    for command in (
        ["audit", "labels.csv", "--write-exclude", "labels.csv"],
        ["audit", "labels.csv", "--html", image],
        ["audit", digits, "--exclude", "out.txt", "--write-exclude", "out.txt"],
        ["evaluate", "m.safetensors", "labels.csv", "--json", image],
        ["train", digits, "--config", config, "--json", config],
        ["train", digits, "--exclude", "out.txt", "--json", "out.txt"],
    ):
        run = vitreous(*command, "--overwrite")
        assert (run.returncode, "is an input of this command" in run.stderr) == (2, True), (command, run.stderr)


def test_the_list_on_standard_input_is_an_input(tmp_path, model_file):
    import subprocess
    import sys

    (tmp_path / "list.csv").write_text("x.png\n")
    command = [sys.executable, "-m", "vitreous", "predict", model_file, "-", "-o", "list.csv", "--overwrite"]
    with (tmp_path / "list.csv").open() as listed:
        run = subprocess.run(command, stdin=listed, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "is an input of this command (standard input)" in run.stderr
    assert (tmp_path / "list.csv").read_text() == "x.png\n"


@pytest.mark.skipif(os.name == "nt", reason="modes as POSIX has them")
def test_overwriting_keeps_the_mode_and_rejects_read_only_files(vitreous, words, tmp_path):
    out = tmp_path / "out.csv"
    for bits in (0o600, 0o664):
        out.write_text("old")
        out.chmod(bits)
        run = vitreous(*words("predict -o", "out.csv", "--overwrite"))
        assert run.returncode == 0, run.stderr
        assert out.read_text().startswith("path,label,")
        assert stat.S_IMODE(out.stat().st_mode) == bits
    out.chmod(0o444)
    run = vitreous(*words("predict -o", "out.csv", "--overwrite"))
    assert (run.returncode, run.stderr) == (
        1,
        "vitreous: cannot write 'out.csv': the file is read-only; allow writing it, or name another\n",
    )


def test_two_outputs_cannot_be_the_same_file(vitreous, words):
    run = vitreous(*words("predict -o", "out.csv", "--json", "out.csv"))
    assert (run.returncode, "-o and --json both write 'out.csv'" in run.stderr) == (2, True)


def test_convert_never_overwrites_its_source(vitreous, words, tmp_path):
    (tmp_path / "out.json").write_text("mine")
    run = vitreous(*words("convert", "out.npz"))
    assert (run.returncode, "'out.json' exists already" in run.stderr) == (2, True)
    (tmp_path / "folder").mkdir()
    shutil.copy(tmp_path / "m.safetensors", tmp_path / "folder" / "model.safetensors")
    for target in ("folder", "folder/.."):
        run = vitreous("convert", "folder", target, "--to=timm", "--activation=gelu", "--overwrite")
        assert (run.returncode, "contains the source" in run.stderr) == (2, True), run.stderr
    assert (tmp_path / "folder" / "model.safetensors").exists()


@pytest.mark.usefixtures("words")
def test_a_document_never_replaces_what_the_command_has_just_written(vitreous, tmp_path):
    run = vitreous("convert", "m.safetensors", "out.safetensors", "--to=vitreous", "--json", "out.safetensors")
    assert run.returncode == 1
    assert "'out.safetensors' was created by another process meanwhile and is left as it is" in run.stderr
    assert len(load_model(tmp_path / "out.safetensors")[1].classes) == 10
    (document,) = tmp_path.glob("out.safetensors.*")
    assert json.loads(document.read_text())["to"] == "vitreous"


JSON = {
    "predict --json": {"model", "computed_by", "images", "failed", "seconds", "predictions"},
    "embed --json": {"model", "output", "features", "images", "written", "failures", "seconds", "computed_by"},
    "evaluate --json": {"model", "data", "computed_by", "unreadable", "classes", "scores", "calibration"},
    "probe --json": {"model", "data", "unreadable", "probes"},
    "audit --json": {"data", "pictures", "counts", "findings"},
    "train --json": {"folder", "model", "exit_code", "epochs", "selected_epoch", "scores", "seconds", "report"},
    "convert --json": {"source", "destination", "to", "files", "reasons", "notes", "comparisons"},
    "models --json": {"models"},
}


@pytest.mark.parametrize("name", JSON)
def test_json_on_standard_output_is_alone(vitreous, words, name):
    more = {"convert --json": ["--activation=gelu-tanh"], "models --json": ["mu/2"]}.get(name, [])
    run = vitreous(*words(name, "-", *more))
    assert run.returncode == 0, run.stderr
    document = json.loads(run.stdout)
    assert JSON[name] <= set(document)
    if name == "train --json":
        assert document["report"]["scores"]["val"]["top1"] == document["scores"]["val"]["top1"]
        assert Path(document["model"]).is_file()
        finished = vitreous(*words(name, "-", "--resume"))
        assert json.loads(finished.stdout)["scores"]["val"]["top1"] == document["scores"]["val"]["top1"]
    if name == "convert --json":
        assert document["comparisons"][0]["by"] == "vitreous"
