"""Every name in docs/reference/paper.md exists, and every equation, table, figure and appendix section has its row."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from pathlib import Path

import pytest

from vitreous.cli.main import VERBS
from vitreous.data.config import AugmentConfig, DataConfig, PreprocessConfig
from vitreous.errors import ConfigError, UsageError
from vitreous.model.config import PARTS as MODEL_PARTS
from vitreous.model.config import ViTConfig
from vitreous.model.part import Part
from vitreous.recipes import RECIPES, recipe
from vitreous.train.config import OptimConfig, RunConfig

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "paper.md"
TEXT = PAGE.read_text(encoding="utf-8")
PARTS_OF_THE_MODEL = [kind for kinds in MODEL_PARTS.values() for kind in kinds]
CONFIGS = {
    config.__name__: config
    for config in (ViTConfig, DataConfig, PreprocessConfig, AugmentConfig, OptimConfig, RunConfig, *PARTS_OF_THE_MODEL)
}
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line.startswith("| ")]
ROWS = [row for row in ROWS if row[0] not in ("Paper", "---")]
NAMES = sorted(set(re.findall(r"`([^`]+)`", TEXT)) - {"tests/test_paper_map.py"})

PARTS = [
    *(f"Equation {n}" for n in range(1, 9)),
    *(f"Table {n}" for n in range(1, 10)),
    *(f"Figure {n}" for n in range(1, 15)),
    *(f"Section {n}" for n in ("3.1", "3.2", "4.1", "4.5", "4.6")),
    *(f"Appendix {n}" for n in ("A", "B.1", "B.1.1", "B.1.2", "C")),
    *(f"Appendix D.{n}" for n in range(1, 11)),
]


def resolve(name: str) -> None:
    """Raise if a name in backticks is none of those that the page's first paragraph describes."""
    if command := re.fullmatch(r"vitreous ([a-z-]+)", name):
        importlib.import_module(VERBS[command[1]])
    elif name.startswith("vitreous."):
        resolve_dotted(name)
    elif option := re.fullmatch(r"(\w+)\.(\w+)(?: = (.+))?", name):
        config = CONFIGS[option[1]]
        if option[2] not in config.__dataclass_fields__:
            raise KeyError(name)
        if option[3]:
            value = json.loads(option[3])
            no_token = option[2] == "class_token" or value == "axial"
            alone = {"pool": "mean"} if no_token else {}  # pool cls needs the token
            made = config(**(alone | {option[2]: value}))
            found = getattr(made, option[2])
            assert (found.kind if isinstance(found, Part) else found) == value
    elif re.fullmatch(r"[A-Za-z0-9]+/\d+", name):
        from vitreous.model.sizes import config_of

        config_of(name)
    else:
        recipe(name)


def resolve_dotted(name: str) -> None:
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        module_name = ".".join(parts[:end])
        if importlib.util.find_spec(parts[0]) and _is_module(module_name):
            found: object = importlib.import_module(module_name)
            for part in parts[end:]:
                if not hasattr(found, part) and part in getattr(found, "__dataclass_fields__", {}):
                    return  # a field without default is no attribute of its class
                found = getattr(found, part)
            return
    raise KeyError(name)


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("name", NAMES)
def test_every_name_exists(name: str) -> None:
    resolve(name)


@pytest.mark.parametrize(
    "name",
    [
        "vitreous.model.vit.Blocks",
        "vitreous.model.vit.Block.forwards",
        "vitreous.nothing",
        "vitreous paint",
        "ViTConfig.pol",
        "ViTConfig.pool = \"average\"",
        "OptimConfig.lr = -1",
        "NoConfig.pool",
        "paper-imagenette",
        "Z/16",
        "tests/conftest.py",
    ],
)  # fmt: skip
def test_a_name_that_does_not_exist_is_found_out(name: str) -> None:
    with pytest.raises((AttributeError, KeyError, ConfigError, UsageError)):
        resolve(name)


@pytest.mark.parametrize("part", PARTS)
def test_every_part_of_the_paper_has_a_row(part: str) -> None:
    assert any(row[0] == part for row in ROWS)


def test_every_row_has_a_name_or_the_words_not_yet() -> None:
    for row in ROWS:
        assert len(row) == 3, row
        assert "`" in row[2] or "not yet" in row[2], row
        assert row[0] in PARTS, row


def test_the_paper_s_recipes_and_sizes_are_on_the_page() -> None:
    paper = {name for name in RECIPES if name.startswith("paper-")}
    assert paper | {"B/16", "L/16", "H/14"} <= set(NAMES)
