"""The functions give the same results and errors as the commands, in a script, a thread and a notebook."""

import inspect
import json
import signal
import subprocess
import sys
import threading
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import vitreous
from forked import run_forked
from vitreous.api import _to_arguments
from vitreous.cli.verbs.train import configure
from vitreous.errors import CheckpointError, DataError, UsageError
from vitreous.files.html import html_bars, html_table
from vitreous.model.config import ViTConfig

TINY = {"width": 16, "depth": 1, "heads": 1, "mlp_dim": 16}
SMALL = {"model": TINY, "epochs": 1, "batch_size": 64, "device": "cpu", "precision": "float32"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A small run on handwritten digits."""
    return vitreous.train("digits", quiet=True, out=tmp_path_factory.mktemp("api") / "run", **SMALL)


class Markup(HTMLParser):
    """Collects the tags and text of HTML, and checks that every tag is closed."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.text: list[str] = []
        self.feed(markup)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_a_run_returns_the_results_of_the_command(trained, request, tmp_path):
    words = [f"--model.{name}={value}" for name, value in TINY.items()]
    words += ["--epochs=1", "--batch-size=64", "--device=cpu", "--precision=float32", "--out=run", "--json=-"]
    run = request.getfixturevalue("vitreous")("train", "digits", *words)
    document = json.loads(run.stdout)
    results = json.loads(json.dumps(trained.to_dict()))
    assert document["scores"] == results["scores"]
    recipes = [folder / "recipe.yaml" for folder in (tmp_path / "run", trained.folder)]
    assert recipes[0].read_text() == recipes[1].read_text()
    assert trained.val.top1 == results["scores"]["val"]["top1"] == trained.report["scores"]["val"]["top1"]
    assert (trained.interrupted, trained.test.n) == (False, 370)
    assert trained.model.predict(trained.folder / "example.png").label in trained.model.classes


@pytest.mark.parametrize(
    "options",
    [
        {"optim": {"lr": 0.004, "betas": (0.9, 0.99)}},
        {"optim.lr": 0.004, "optim.betas": [0.9, 0.99]},
        {"optim": {"lr": np.float64(0.004)}, "optim.betas": (0.9, 0.99)},
    ],
)
def test_groups_of_options_are_dictionaries_or_dotted_names(options):
    options = {**options, "model": "S/16", "out": Path("runs/x"), "ema": None}
    config = configure([*_to_arguments(options), "--", "digits"])[0]
    assert (config.optim.lr, config.optim.betas) == (0.004, (0.9, 0.99))
    assert (config.model.width, config.out, config.ema) == (384, "runs/x", None)


@pytest.mark.parametrize(
    "options",
    [
        {"model": {"position": {"kind": "rope-2d", "theta": 1e-5}}},
        {"model": {"position": "rope-2d", "position.theta": 1e-5}},
        {"model.position": {"theta": 1e-5, "kind": "rope-2d"}},
        {"model.position.kind": "rope-2d", "model.position.theta": 1e-5},
    ],
)
def test_a_part_of_the_model_is_written_as_for_create(options):
    config = configure([*_to_arguments(options), "--", "digits"])[0]
    assert config.model.position == ViTConfig(position={"kind": "rope-2d", "theta": 1e-5}).position


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": {"kind": "S/16"}}, "unknown option '--model.kind'"),
        ({"epoch": 1}, "unknown option '--epoch'. Did you mean '--epochs'?"),
        ({"epochs": "many"}, "--epochs is 'many', it must be a whole number"),
        ({"optim": {"rl": 1}}, "unknown option '--optim.rl'"),
        ({"json": "x"}, r"option 'json' is not available in Python: use the result's to_dict\(\)"),
        ({"show_batch": True}, "option 'show_batch' is not available in Python"),
        ({"optim": {"lr": object}}, "is not an option's value"),
        ({"x y": 1}, "'x y' is not the name of an option"),
    ],
)
def test_wrong_options_raise(options, message):
    with pytest.raises(UsageError, match=message):
        vitreous.train("digits", quiet=True, **options)


def test_wrong_data_and_models_raise(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="not found"):
        vitreous.train(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="no model"):
        vitreous.finetune("digits", tmp_path / "gone.safetensors")
    with pytest.raises(CheckpointError, match="no model"):
        vitreous.evaluate("gone.safetensors", "digits")
    with pytest.raises(UsageError, match="two sets of images"):
        vitreous.train("digits", **{"data.source": "cifar10"})
    assert list(tmp_path.iterdir()) == []


def test_a_thread_trains_silently_and_restores_all_settings(trained, tmp_path, capfd):
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    threads = torch.get_num_threads()
    found = []

    def work() -> None:
        out = tmp_path / "tuned"
        tuned = vitreous.finetune(
            "digits", trained.folder, quiet=True, probe=False, out=out, epochs=1, device="cpu", optim={"lr": 1e-3}
        )
        found.append(tuned)
        found.append(vitreous.evaluate(tuned.folder, "digits", split="val", quiet=True, device="cpu"))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    tuned, evaluation = found
    assert capfd.readouterr() == ("", "")
    assert evaluation.scores.top1 == tuned.val.top1
    assert {number: signal.getsignal(number) for number in signal.valid_signals()} == handlers
    assert torch.get_num_threads() == threads


def test_a_loaded_model_is_evaluated_as_its_file(trained):
    device = str(trained.model.device)
    one = vitreous.evaluate(trained.folder, "digits", split="val", quiet=True, device=device)
    other = vitreous.evaluate(trained.model, "digits", split="val", quiet=True)
    assert one.scores.to_dict() == other.scores.to_dict()
    assert one.to_dict()["classes"] == list(trained.model.classes)
    with pytest.raises(UsageError, match="the model is loaded already: omit engine"):
        vitreous.evaluate(trained.model, "digits", engine="torch")
    with pytest.raises(UsageError, match="the model is loaded already: omit image_size"):
        vitreous.evaluate(trained.model, "digits", **{"image-size": 384})


def test_html_of_results_is_escaped_and_keeps_the_notebooks_colours(trained):
    evaluation = vitreous.evaluate(trained.model, "digits", split="val", quiet=True)
    prediction = trained.model.predict(trained.folder / "example.png")
    for shown in (trained, trained.model, trained.val, evaluation, prediction):
        markup = shown._repr_html_()
        assert {"table", "td"} <= Markup(markup).tags
        assert "color:inherit;background:transparent" in markup
    evil = '"><script>alert(1)</script>\u202e\x1b'
    for markup in (html_table(evil, [(evil, evil)], (evil,)), html_bars(evil, [(evil, 0.5), (evil, float("nan"))])):
        seen = Markup(markup)
        assert "script" not in seen.tags
        assert not any(char in markup for char in "\u202e\x1b")
        assert seen.text.count('"><script>alert(1)</script>\\u202e\\x1b') >= 2


def test_callable_packages_stay_packages():
    import vitreous.evaluate.scoring.metrics as metrics
    import vitreous.train.run as run

    assert isinstance(vitreous.train, ModuleType)
    assert vitreous.train.run is run
    assert vitreous.evaluate.scoring.metrics is metrics
    assert inspect.isfunction(run.run)
    assert list(inspect.signature(vitreous.train).parameters) == ["data", "quiet", "resume", "options"]
    assert "vitreous.api.evaluate" in inspect.getdoc(vitreous.evaluate)
    assert not hasattr(vitreous.train, "nothing")
    code = (
        "from vitreous import train, evaluate, finetune; import vitreous; assert callable(train) and callable(evaluate)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    code = (
        "import vitreous.train.config; import vitreous; assert callable(vitreous.train) and callable(vitreous.finetune)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


NOTEBOOK = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.displaypub import CapturingDisplayPublisher

class ZMQInteractiveShell(InteractiveShell):  # the name by which libraries know a notebook
    pass

shell = ZMQInteractiveShell.instance(display_pub_class=CapturingDisplayPublisher)
result = shell.run_cell('''
import vitreous
result = vitreous.train("digits", epochs=2, batch_size=64, device="cpu", precision="float32", out="run",
                        model={"width": 16, "depth": 1, "heads": 1, "mlp_dim": 16})
found = vitreous.evaluate(result.model, "digits", split="val")
''')
result.raise_error()
print("SHOWN", json.dumps([out["data"].get("text/html", "") for out in shell.display_pub.outputs]))
"""


def test_a_notebook_shows_a_progress_bar(tmp_path):
    pytest.importorskip("IPython", reason="IPython is not installed: pip install -e '.[dev]'")
    run = run_forked(tmp_path, code=NOTEBOOK)
    assert run.returncode == 0, run.stderr
    lines, _, shown = run.stdout.partition("SHOWN ")
    bars = json.loads(shown)
    assert any("<progress" in bar and "epoch 1/2" in bar for bar in bars), run.stdout
    assert bars[-1] == "", "the bar is removed at the end"
    assert "epoch 2/2" in lines
    assert "ipywidgets" not in run.stdout + run.stderr


def test_ctrl_c_ends_a_run_and_the_result_is_marked_interrupted(tmp_path):
    code = (
        "import os, signal, threading, time, vitreous\n"
        "def stop():\n"
        "    while not os.path.exists('run/metrics.csv'): time.sleep(0.05)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=stop, daemon=True).start()\n"
        f"result = vitreous.train('digits', epochs=10000, quiet=True, out='run', model={TINY}, device='cpu')\n"
        "assert result.interrupted and result.run.model.exists(), result\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
        "print(repr(result))"
    )
    run = run_forked(tmp_path, code=code)
    assert run.returncode == 0, run.stderr
    assert "interrupted)" in run.stdout
    assert Path(tmp_path / "run" / "last.ckpt").exists()
