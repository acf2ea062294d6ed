"""Everything that the documentation names exists: commands, options, recipes, names, links, versions."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import shlex
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import pytest
import torch

import vitreous
from vitreous.cli.main import VERBS, main
from vitreous.data.sources.known import KNOWN
from vitreous.recipes import RECIPES

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
OVERVIEW = (ROOT / "docs/reference/overview.md").read_text(encoding="utf-8")
GUIDES = [
    page.read_text(encoding="utf-8") for room in ("tutorials", "how-to") for page in ROOT.glob(f"docs/{room}/*.md")
]
SHOWN = "\n".join([README, OVERVIEW, *GUIDES])
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
WRITTEN = [page for page in ROOT.glob("docs/**/*.md") if not {"generated", "_build"} & set(page.parts)]
LINKED = [*DOCUMENTS, "benchmarks/README.md", *sorted(str(page.relative_to(ROOT)) for page in WRITTEN)]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def blocks(text: str, language: str) -> list[str]:
    """The fenced code blocks of a Markdown text in one language, in order."""
    return re.findall(rf"^```{language}\s*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[list[str]]:
    """The words of each `vitreous ...` command in a text's sh and console blocks, without the word vitreous."""
    shown = [*blocks(text, "sh"), *blocks(text, "console")]
    lines = [line.removeprefix("$ ") for block in shown for line in block.replace("\\\n", " ").splitlines()]
    words = [shlex.split(part, comments=True) for line in lines for part in re.split(r"&&|\|\|| > ", line)]
    return [command[1:] for command in words if command[:1] == ["vitreous"]]


@cache
def help_of(verb: str) -> str:
    """What `vitreous VERB --help all` prints: every option."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        try:
            code = main([verb, "--help", "all"])
        except SystemExit as stop:
            code = stop.code
    assert not code, code
    return said.getvalue()


def is_in_help(option: str, verb: str) -> bool:
    """Whether the help of a verb shows an option, with dashes or underscores."""
    pattern = re.escape(option[2:]).replace(r"\-", "[-_]")
    return re.search(rf"(?<![\w-]){option[:2]}{pattern}(?![\w-])", help_of(verb)) is not None


def test_the_two_commands_come_first():
    """`.ci/run` runs the README's first two sh blocks; these are the two that must stay true."""
    assert blocks(README, "sh")[:2] == [
        "pip install . && vitreous train digits\n",
        "pip install -e '.[dev]' && pytest\n",
    ]


def test_ci_reads_the_same_two_commands():
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    program = re.search(r"awk -v wanted=\"\$1\" '(.*?)' README\.md", script, flags=re.DOTALL)
    assert program, ".ci/run does not read README.md"
    for number, block in enumerate(blocks(README, "sh")[:2], start=1):
        read = subprocess.run(
            ["awk", "-v", f"wanted={number}", program[1], str(ROOT / "README.md")],
            capture_output=True,
            text=True,
            check=True,
        )
        assert read.stdout == block


def test_the_readme_fits_on_two_screens():
    assert len(README.splitlines()) <= 120


@pytest.mark.parametrize("command", sorted({tuple(command) for command in commands(SHOWN)}), ids=" ".join)
def test_commands_name_what_exists(command):
    verb, *words = command
    assert verb in VERBS
    options = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    assert [option for option in options if not is_in_help(option, verb)] == []
    if verb == "train" and re.fullmatch(r"[a-z][a-z0-9-]*", words[0]):
        assert words[0] in KNOWN


def test_recipes_in_the_text_exist():
    named = re.findall(r"--recipe[ =]([\w-]+)", SHOWN)
    assert named
    assert set(named) <= set(RECIPES)


def test_every_verb_is_shown():
    shown = {command[0] for command in commands(OVERVIEW)} | set(re.findall(r"`vitreous (\w+)`", OVERVIEW))
    assert shown == set(VERBS)


def test_the_table_of_recipes_names_recipes():
    rows = re.search(r"\| recipe \| for \|\n(.*?)\n\n", OVERVIEW, flags=re.DOTALL)
    assert rows
    named = {name for row in rows[1].splitlines()[1:] for name in re.findall(r"`([^`]+)`", row.split("|")[1])}
    assert named <= set(RECIPES)
    assert len(named) >= 10


def test_the_table_of_extras_is_the_list_of_extras():
    rows = re.search(r"\| extra \| brings \|\n(.*?)(?:\n\n|\n?$)", OVERVIEW, flags=re.DOTALL)
    assert rows
    named = {name for row in rows[1].splitlines()[1:] for name in re.findall(r"`([^`]+)`", row.split("|")[1])}
    assert named == set(PYPROJECT["project"]["optional-dependencies"])


@pytest.mark.parametrize("code", [*blocks(README, "python"), *blocks(OVERVIEW, "python")])
def test_python_examples_use_public_names(code):
    used = {
        node.attr
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "vitreous"
    }
    assert used
    assert used <= set(vitreous.__all__)


def test_the_example_of_a_model_runs():
    (code,) = [block for block in blocks(OVERVIEW, "python") if "vitreous.create" in block]
    names: dict[str, object] = {}
    with torch.device("meta"):  # shapes and names without the time to draw 86 million weights
        exec(code, names)
    assert isinstance(names["model"], vitreous.VisionTransformer)


def anchors(document: Path) -> set[str]:
    """The fragments that GitHub makes of a document's headings."""
    headings = re.findall(r"^#+ (.*)", document.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", LINKED)
def test_links_lead_somewhere(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        target, _, fragment = link.partition("#")
        if not re.match(r"[a-z]+:", link):
            file = (ROOT / document).parent / target if target else ROOT / document
            assert file.exists(), link
            assert not fragment or fragment in anchors(file), link


@pytest.mark.parametrize("document", LINKED)
def test_named_files_exist(document):
    text = re.sub(r"^```.*?^```", "", (ROOT / document).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    named = re.findall(r"`((?:src|tests|docs|benchmarks|\.ci|\.github)/[^`\s]+|[\w/]+\.(?:py|toml))`", text)
    places = [ROOT, ROOT / "src/vitreous", (ROOT / document).parent]
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def test_no_figure_is_left_to_measure():
    assert "TODO" not in SHOWN


def test_what_is_not_released_is_on_top():
    """The version comes from a tag; the changelog and the citation say it too."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.findall(r"^## \[(\d[^\]]*)\]", changelog, flags=re.MULTILINE)[0]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.*)", citation, flags=re.MULTILINE) == [newest]
    assert PYPROJECT["tool"]["setuptools_scm"]["fallback_version"] == newest
