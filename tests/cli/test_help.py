"""Help by topic: a first screen without the configuration, one topic per group of options, and unknown topics."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys

import pytest

from vitreous.cli.options.help import TOPICS
from vitreous.model.config import PARTS
from vitreous.model.part import option_types
from vitreous.recipes import RECIPES, recipe
from vitreous.train.config import RunConfig

VERBS = ("train", "plan", "finetune")
FIELDS = {field.name: field for field in dataclasses.fields(RunConfig)}
GROUPS = [name for name in FIELDS if dataclasses.is_dataclass(getattr(RunConfig(), name))]


def options_in(text: str) -> set[str]:
    """The options that a help text lists."""
    return set(re.findall(r"^  (?:-\w, )?--([\w.-]+) ", text[text.index("\n\n") :], re.MULTILINE))


@pytest.mark.parametrize(
    ("words", "code"),
    [
        *(([verb, "--help"], 0) for verb in VERBS),
        (["train", "nowhere/at-all"], 1),
        (["train", "nowhere/", "--seed=1"], 1),
    ],
    ids=str,
)
def test_first_screens_and_missing_data_need_no_configuration(words, code):
    script = (
        "import sys; from vitreous.cli.main import main; code = main(sys.argv[1:])\n"
        "slow = [m for m in sys.modules if m in ('torch', 'vitreous.train.config') or m.startswith('vitreous.model')\n"
        "        or m.startswith('vitreous.recipes.')]\n"
        "assert not slow, slow\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert done.stderr.count("\n") == code


@pytest.mark.parametrize("verb", VERBS)
def test_the_first_screen_is_short_and_ends_with_the_topics(vitreous, monkeypatch, verb):
    monkeypatch.setenv("COLUMNS", "110")
    lines = vitreous(verb, "--help").stdout.splitlines()
    assert len(lines) <= 70
    assert max(map(len, lines)) <= 110
    assert lines[0].startswith(f"usage: vitreous {verb} DATA")
    assert [line.split()[1] for line in lines[-len(TOPICS) :]] == list(TOPICS)
    assert "examples:" in lines
    assert verb == "finetune" or set(RECIPES) <= {line.split()[0] for line in lines if line.strip()}


def test_topics_are_the_groups_of_the_configuration():
    assert set(TOPICS) == {"run", "all", *GROUPS}


@pytest.mark.parametrize("topic", GROUPS)
def test_a_topic_lists_the_options_of_its_group(vitreous, topic):
    fields = {f"{topic}.{field.name}" for field in dataclasses.fields(getattr(RunConfig(), topic))}
    if topic == "model":
        fields |= {f"model.{part}.{o}" for part, kinds in PARTS.items() for kind in kinds for o in option_types(kind)}
    assert fields == options_in(vitreous("train", "--help", topic).stdout)
    assert vitreous("train", f"--help={topic}").stdout == vitreous("train", "-h", topic).stdout


@pytest.mark.parametrize("verb", VERBS)
def test_run_has_the_options_without_a_group_and_all_has_every_option(vitreous, verb):
    run = options_in(vitreous(verb, "--help", "run").stdout)
    assert set(FIELDS) - set(GROUPS) | {"help", "config", "json", "overwrite", "print-config"} <= run
    assert not any("." in option for option in run)
    everything = vitreous(verb, "--help", "all").stdout
    assert run < options_in(everything)
    assert "examples:" in everything


def test_a_topic_shows_the_defaults_of_the_recipe(vitreous):
    said = vitreous("train", "digits", "--optim.lr", "3", "--help", "optim").stdout
    assert "those of the recipe digits, chosen by 'digits'" in " ".join(said.split())
    assert f"[{recipe('digits').optim.lr}]" in said.split("--optim.lr X")[1].split("--")[0]
    said = vitreous("finetune", "photos/", "--help", "optim", "--tune", "linear").stdout
    assert "[0.02]" in said.split("--optim.lr X")[1].split("--")[0]
    assert vitreous("help", "train", "optim").stdout == vitreous("train", "--help", "optim").stdout


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(("word", "topic"), [("modle", "model"), ("augmnt", "augment"), ("optimizer", "optim")])
def test_an_unknown_topic_is_answered_with_the_nearest(vitreous, verb, word, topic):
    for words in (("--help", word), (f"--help={word}",), ("digits", "-h", word)):
        run = vitreous(verb, *words)
        assert (run.returncode, run.stdout, run.stderr.count("\n")) == (2, "", 1)
        assert f"unknown help topic '{word}'. Did you mean '{topic}'?" in run.stderr


@pytest.mark.parametrize("word", ["digits", "here", "photos/", "labels.csv", "--epochs=3", "optim.lr=3"])
def test_data_and_options_after_help_are_not_topics(vitreous, tmp_path, word):
    (tmp_path / "here").mkdir()
    assert vitreous("train", "--help", word).stdout == vitreous("train", "--help").stdout != ""


def test_after_two_dashes_nothing_is_help(vitreous):
    assert vitreous("train", "--", "--help").returncode == 2
