"""The house plan, held: imports go down, importing is cheap and silent, and files and functions stay short."""

from __future__ import annotations

import ast
import graphlib
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

SRC = Path(__file__).resolve().parents[1] / "src"

# Imports go strictly down and may skip a floor. A room is a folder or a file directly under src/vitreous.
FLOORS = {
    "_version": 0,  # a string, written by a build
    "errors": 0,
    "choices": 0,
    "files": 0,  # the border: opening strangers' files, writing the user's, showing foreign text
    "machine": 1,
    "web": 1,  # the page in a browser: markup, style and scripts, and what puts them together
    "model": 1,
    "data": 1,
    "evaluate": 1,
    "predictions": 1,  # what the predictor returns: plain values
    "client": 2,  # of a service; it knows no model
    "accelerate": 2,
    "checkpoint": 3,
    "inspection": 3,
    "runs": 4,
    "audit": 4,  # a room of its own: files that training never needs, above the caches' atomic writing
    "engines": 4,
    "predictor": 4,
    "export": 4,
    "report": 5,  # figures and pages, of audits too
    "train": 6,
    "recipes": 7,
    "serve": 7,
    "cluster": 7,  # the verbs on the machines of a Ray cluster
    "cli": 8,
    "api": 9,  # the verbs as functions, whose options are read as the command's are
    "__init__": 10,  # the facade: it fetches public names from anywhere, and nothing below may import them from it
    "__main__": 10,
}

# Arrows between rooms of one floor, each with its reason.
DRAWN: dict[tuple[str, str], str] = {
    ("choices", "errors"): "a refused value is answered with the nearest one",
    ("files", "errors"): "what cannot be written is one of the errors",
    ("errors", "files"): "an error's message is text on its way to a terminal (files/text.py, which imports nothing)",
    ("data", "machine"): "images are decoded by as many threads and workers as there are cores",
    ("inspection", "checkpoint"): "an explanation opens a model by its path; checkpoints know nothing of maps",
    ("predictor", "engines"): "the predictor has an engine compute; engines know nothing of images' files and labels",
    ("predictor", "export"): "the predictor runs exported files too; an export knows nothing of predictors",
    ("cluster", "serve"): "a replica of Ray Serve is a whole service; a service knows nothing of clusters",
    ("engines", "export"): "one room traces models and writes graphs: export/graph, for exported files and for caches",
}

MAX_FILE_LINES = 350
MAX_FUNCTION_LINES = 60

# What `import vitreous`, `vitreous --help` and the configuration must not load: each costs a tenth of a second or more.
HEAVY = {"PIL", "jsonargparse", "lightning", "matplotlib", "numpy", "pyarrow", "sklearn", "torch", "torchvision"}


class Arrow(NamedTuple):
    """One import: the file and line it stands on, its room, and the room it reaches."""

    path: Path
    line: int
    source: str
    target: str


def modules(src: Path) -> dict[str, Path]:
    """Dotted name -> file of every module of the package."""
    found = {}
    for path in sorted((src / "vitreous").rglob("*.py")):
        parts = path.relative_to(src).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file, parsed once."""
    return ast.parse(path.read_text(encoding="utf-8"))


def room(module: str) -> str:
    """The room that a module lives in."""
    return module.split(".")[1] if "." in module else "__init__"


def imported(tree: ast.Module, module: str, path: Path, known: dict[str, Path]) -> Iterator[tuple[int, str]]:
    """Line and module of each import of the package: at the top, in functions, under TYPE_CHECKING, by string."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names if name.name.split(".")[0] == "vitreous")
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join(
                    [*package.split(".")[: len(package.split(".")) - node.level + 1], *filter(None, [base])]
                )
            if base.split(".")[0] == "vitreous":
                for name in node.names:
                    if name.name != "__version__":  # a plain string that every floor may write into its files
                        yield node.lineno, f"{base}.{name.name}" if f"{base}.{name.name}" in known else base
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            target = node.value.partition(":")[0]  # "vitreous.cli.verbs.train" or "vitreous.recipes.digits:digits"
            if "." in target and target in known:
                yield node.lineno, target


def arrows(src: Path) -> list[Arrow]:
    """Every import from one room of the package to another."""
    known = modules(src)
    return [
        Arrow(path, line, room(module), room(target))
        for module, path in known.items()
        for line, target in imported(tree_of(path), module, path, known)
        if room(module) != room(target)
    ]


def forbidden(found: list[Arrow]) -> list[str]:
    """One line per arrow that does not go down and is not drawn."""
    return [
        f"{a.path}:{a.line}: {a.source} (floor {FLOORS[a.source]}) imports {a.target} (floor {FLOORS[a.target]})"
        for a in found
        if FLOORS[a.target] >= FLOORS[a.source] and (a.source, a.target) not in DRAWN
    ]


def test_every_room_has_a_floor():
    assert {room(module) for module in modules(SRC)} <= set(FLOORS)


def test_imports_go_down():
    found = arrows(SRC)
    assert ("train", "model") in {(a.source, a.target) for a in found}, "the graph is empty: nothing was checked"
    assert forbidden(found) == []


def test_no_modules_import_each_other_in_a_circle():
    """Imports in functions and for types count too; names in strings, which are imported later, do not."""
    known = modules(SRC)
    imports = {}
    for module, path in known.items():
        tree = tree_of(path)
        statements = ast.Module([n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)], [])
        imports[module] = {target for _, target in imported(statements, module, path, known)} - {module, "vitreous"}
    order = graphlib.TopologicalSorter(imports)
    order.prepare()  # raises CycleError with the circle


def test_every_drawn_arrow_is_used():
    assert set(DRAWN) <= {(a.source, a.target) for a in arrows(SRC)}


@pytest.mark.parametrize(
    ("file", "code", "wrong"),
    [
        ("model/vit.py", "from vitreous.data.config import DataConfig", True),  # sideways
        ("data/preprocess.py", "def f():\n    from vitreous.train import run", True),  # up, hidden in a function
        (
            "evaluate/scoring/metrics.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import vitreous.model.vit",
            True,
        ),
        ("checkpoint/model_file.py", "from ..cli import main", True),  # up, relative
        ("audit/run.py", "from vitreous import predictor", True),  # sideways, a room as a name
        ("predictor.py", "from vitreous import create", True),  # up to the facade
        ("recipes/__init__.py", "HOME = 'vitreous.cli.main:main'", True),  # up, by string
        ("train/run.py", "from vitreous import __version__\nfrom .config import RunConfig", False),
        ("cli/main.py", "from ..train import run\nfrom vitreous.errors import VitreousError", False),
        ("checkpoint/model_file.py", "from vitreous.data.preprocess import EvalPipeline", False),
    ],
)
def test_the_graph_sees_each_kind_of_import(tmp_path, file, code, wrong):
    for module in ("errors", "predictor", "model/vit", "data/config", "data/preprocess", "train/config", "train/run"):
        target = tmp_path / "vitreous" / f"{module}.py"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("")
    for folder in ("", "model", "data", "train", "evaluate", "checkpoint", "recipes", "audit", "cli"):
        (tmp_path / "vitreous" / folder).mkdir(exist_ok=True)
        (tmp_path / "vitreous" / folder / "__init__.py").write_text("")
    (tmp_path / "vitreous/cli/main.py").write_text("")
    target = tmp_path / "vitreous" / file
    target.parent.mkdir(exist_ok=True)
    target.write_text(code)
    assert bool(forbidden(arrows(tmp_path))) is wrong


def loaded_by(code: str) -> set[str]:
    """Names of the top-level packages that a fresh interpreter has loaded after running some code."""
    report = "import json, sys; print('LOADED', json.dumps(sorted({m.partition('.')[0] for m in sys.modules})))"
    run = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=False, timeout=120
    )
    assert run.returncode == 0, run.stderr
    return set(json.loads(run.stdout.rpartition("LOADED")[2]))


def test_importing_the_package_loads_nothing_heavy_and_prints_nothing():
    assert loaded_by("import vitreous; vitreous.train, vitreous.evaluate, vitreous.finetune") & HEAVY == set()
    run = subprocess.run([sys.executable, "-c", "import vitreous"], capture_output=True, check=True)
    assert (run.stdout, run.stderr) == (b"", b"")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], []])
def test_the_command_answers_without_torch(arguments):
    code = f"""
from vitreous.cli.main import main
try:
    main({arguments!r})
except SystemExit as stop:
    assert stop.code in (0, None, 2), stop.code
"""
    assert loaded_by(code) & HEAVY == set()


@pytest.mark.parametrize("verb", ["train", "finetune", "plan"])
def test_the_first_screen_of_help_needs_no_torch(verb):
    assert "torch" not in loaded_by(f"from vitreous.cli.main import main\nmain(['{verb}', '--help'])")


def test_data_that_is_not_there_is_told_without_torch():
    code = "from vitreous.cli.main import main\nassert main(['train', 'nowhere/at-all']) == 1"
    assert "torch" not in loaded_by(code)


def test_the_configuration_of_data_loads_without_torch():
    assert loaded_by("import vitreous.data.config, vitreous.recipes") & HEAVY == set()


def test_the_model_imports_torch_and_nothing_of_training_files_or_the_web():
    loaded = loaded_by("import vitreous.model.vit, vitreous.model.sizes")
    assert "torch" in loaded
    assert loaded & {"PIL", "jsonargparse", "lightning", "matplotlib", "safetensors", "sklearn", "torchvision"} == set()


def names_imported(path: Path) -> set[str]:
    """Top-level packages that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add("vitreous" if node.level else (node.module or "").partition(".")[0])
    return names


def test_the_package_imports_only_what_it_declares():
    project = tomllib.loads((SRC.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [one for name, extra in project["optional-dependencies"].items() if name != "dev" for one in extra]
    declared = {re.split(r"[^\w-]", line)[0].lower() for line in project["dependencies"] + extras}
    distribution = {
        "PIL": "pillow",
        "sklearn": "scikit-learn",
        "yaml": "pyyaml",
        "docstring_parser": "docstring-parser",
    }
    found = set().union(*(names_imported(path) for path in modules(SRC).values()))
    foreign = {distribution.get(name, name) for name in found - set(sys.stdlib_module_names) - {"vitreous"}}
    assert foreign - declared == set()


def test_the_model_names_only_torch_and_pure_parts_of_the_standard_library():
    files_or_web = {"http", "io", "json", "os", "pathlib", "pickle", "shutil", "socket", "tempfile", "urllib"}
    allowed = (set(sys.stdlib_module_names) - files_or_web) | {"torch", "vitreous"}
    found = {path.name: names_imported(path) - allowed for path in (SRC / "vitreous/model").glob("*.py")}
    assert {file: names for file, names in found.items() if names} == {}


def test_modules_open_with_what_lives_there():
    assert [name for name, path in modules(SRC).items() if not ast.get_docstring(tree_of(path))] == []


def test_files_stay_short():
    lengths = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in modules(SRC).items()}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_FILE_LINES} == {}


def test_functions_stay_short():
    lengths = {
        f"{name}.{node.name} (line {node.lineno})": (node.end_lineno or node.lineno) - node.lineno + 1
        for name, path in modules(SRC).items()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: lines for name, lines in lengths.items() if lines > MAX_FUNCTION_LINES} == {}


def test_only_the_command_line_prints_and_exits():
    talk = [
        f"{path}:{node.lineno}: {ast.unparse(node.func)}"
        for name, path in modules(SRC).items()
        if room(name) not in ("cli", "__main__")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"print", "exit", "quit", "sys.exit", "os._exit"}
        if name != "vitreous.train.scale.watch"  # ends processes whose training loop hangs
    ]
    assert talk == []


def test_benchmarks_import_what_exists():
    missing = []
    for file in sorted((SRC.parent / "benchmarks").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vitreous"):
                module = importlib.import_module(node.module)
                for name in (each.name for each in node.names):
                    if not (hasattr(module, name) or importlib.util.find_spec(f"{node.module}.{name}")):
                        missing.append(f"{file}: {node.module}.{name}")
    assert missing == []
