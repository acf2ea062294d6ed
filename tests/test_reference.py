"""The reference has every public name, every option, and the default of each recipe. The site is not built."""

from __future__ import annotations

import contextlib
import io
import re
from functools import cache

import pytest

import reference_pages
import vitreous
from reference_pages.names import ENTRY, name_pages
from vitreous.cli.main import VERBS, main
from vitreous.recipes import RECIPES, recipe


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, str]:
    """The text of each generated page, by its path without the extension."""
    folder = tmp_path_factory.mktemp("reference")
    return {str(page.relative_to(folder))[:-3]: page.read_text() for page in reference_pages.write(folder)}


@cache
def options_in_help(verb: str) -> set[str]:
    """The options that `vitreous VERB --help all` describes, and of the training verbs those of the first screen."""
    said = io.StringIO()
    methods = [[verb, "--help", "methods"]] if verb == "inspect" else []
    for words in ([verb, "--help", "all"], [verb, "--help"], *methods):
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            main(words)
    lines = re.findall(r"^  (-.*)", said.getvalue(), flags=re.MULTILINE)
    shown = " ".join(re.split(r"\s{2,}\w", line)[0] for line in lines)
    return set(re.findall(r"(?<![\w-])--?[a-z][\w.-]*", shown)) - {"-h", "--help"}


def documented(page: str) -> dict[str, str]:
    """The options of a page, each with its description."""
    entries = re.findall(r"^(`[^\n]+`)\n: (.*)$", page, flags=re.MULTILINE)
    return {name: text for names, text in entries for name in re.findall(r"`([^`]+)`", names)}


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_is_documented(pages, verb):
    described = documented(pages[f"options/{verb}"])
    options = {name for name in described if name.startswith("-")}
    assert options_in_help(verb) or verb == "completion", "the help was not read"
    assert options_in_help(verb) - options == set()
    assert [name for name, text in described.items() if not text.strip()] == []
    assert f"\n{verb}\n" in pages["options/index"]


def test_an_option_of_no_verb_is_not_documented(pages):
    assert {name for name in documented(pages["options/models"]) if name.startswith("-")} == options_in_help("models")


@pytest.mark.parametrize("name", RECIPES)
def test_defaults_are_those_of_the_recipes(pages, name):
    """The sentence on defaults says the most common value first, then the other values with their recipes."""
    described, config = documented(pages["options/train"]), recipe(name)
    for option, value in (
        ("--optim.lr", config.optim.lr),
        ("--optim.weight_decay", config.optim.weight_decay),
        ("--batch_size", config.batch_size),
        ("--label_smoothing", config.label_smoothing),
        ("--model.image_size", config.model.to_dict()["image_size"]),
        ("--model.position", config.model.position.kind),
    ):
        common, *others = described[option].split(" Default: ")[1].rstrip(".").split("; ")
        mine = [other for other in others if name in re.split(r", | in ", other)]
        shown = (mine or [common])[0].split(" in ")[0].strip("`")
        expected = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        assert shown == expected, option


def test_the_package_s_own_names_have_their_page():
    assert set(ENTRY) == set(vitreous.__all__)
    page = name_pages()["names/entry"]
    assert set(re.findall(r"^## `vitreous\.(\w+)`", page, flags=re.MULTILINE)) == set(vitreous.__all__)
    modules = vitreous._MODULES | dict.fromkeys(("train", "evaluate"), "vitreous.api")
    assert modules == ENTRY
