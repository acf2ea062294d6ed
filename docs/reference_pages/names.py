"""Pages of every public name: one of the package's own names, and one for each subpackage.

The names are those in `__all__`, read from the source, so that listing them imports nothing. Sphinx's autodoc, which
imports the modules, writes the docstrings of functions and classes.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = ["ENTRY", "name_pages", "public_names"]

SOURCE = Path(__file__).resolve().parents[2] / "src" / "vitreous"

ENTRY = {
    "train": "vitreous.api",
    "finetune": "vitreous.api",
    "evaluate": "vitreous.api",
    "calibrate": "vitreous.api",
    "inspect": "vitreous.api",
    "load": "vitreous.predictor",
    "Classifier": "vitreous.predictor",
    "Client": "vitreous.client",
    "explain": "vitreous.inspection.explain",
    "create": "vitreous.accelerate.model",
    "ViTConfig": "vitreous.model.config",
    "VisionTransformer": "vitreous.model.vit",
}
"""The names of the package itself, in the order of a reader, and the module that documents each."""

_ENTRY_PAGE = """\
# Python

`import vitreous` loads no torch: a name is imported on first use. These names are the interface that stays; those of
[all packages](index.md) may move between versions.

"""
_INDEX = """\
# All packages

Every public name of every module, {count:,} in all: its signature or value, and its docstring. A package's docstring
says in which order to read it.

```{{toctree}}
:maxdepth: 1

{pages}
```
"""


@cache
def public_names() -> dict[str, list[str]]:
    """Return the public names of each module that has any, by the name of the module."""
    found = {}
    for file in sorted(SOURCE.rglob("*.py")):
        parts = ["vitreous", *file.relative_to(SOURCE).with_suffix("").parts]
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if names := _exported(file):
            found[module] = names
    return found


def _exported(file: Path) -> list[str]:
    """Return what `__all__` of a file lists."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


class _Constant(NamedTuple):
    value: str
    """As code."""
    text: str
    """Its docstring, or nothing."""


@cache
def _constants(module: str) -> dict[str, _Constant]:
    """Return the constants of a module, those of the package that it imports included.

    Autodoc leaves out those without a docstring, and those of modules that Sphinx cannot parse.
    """
    place = SOURCE.parent.joinpath(*module.split("."))
    file = place / "__init__.py" if (place / "__init__.py").is_file() else place.with_suffix(".py")
    found, body = dict[str, _Constant](), ast.parse(file.read_text(encoding="utf-8")).body
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            (target,) = node.targets if isinstance(node, ast.Assign) else [node.target]
            pairs = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
            targets, values = (target.elts, node.value.elts) if pairs else ([target], [node.value])
            for name, value in zip(targets, values, strict=True):
                found[ast.unparse(name)] = _Constant(ast.unparse(value), _docstring(following))
        elif isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("vitreous."):
            theirs = _constants(str(node.module))
            found |= {name.asname or name.name: theirs[name.name] for name in node.names if name.name in theirs}
    return found


def _docstring(node: ast.stmt | None) -> str:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return inspect.cleandoc(node.value.value) if is_text and isinstance(node.value.value, str) else ""


def name_pages() -> dict[str, str]:
    """Return the text of each page by its name."""
    modules = public_names()
    rooms: dict[str, list[str]] = {}
    for module in modules:
        if module != "vitreous":
            rooms.setdefault(".".join(module.split(".")[:2]), []).append(module)
    pages = {
        f"names/{room}": f"# `{room}`\n\n" + "\n".join(_directive(module, modules[module]) for module in inside)
        for room, inside in rooms.items()
    }
    count = sum(map(len, modules.values()))
    index = _INDEX.format(count=count, pages="\n".join(rooms))
    entries = "\n".join(_entry(name) for name in ENTRY)
    return {**pages, "names/index": index, "names/entry": _ENTRY_PAGE + entries}


def _directive(module: str, names: list[str]) -> str:
    constants = {name: found for name, found in _constants(module).items() if name in names}
    members = [name for name in names if name not in constants]
    text = f".. automodule:: {module}\n" + (f"   :members: {', '.join(members)}\n" if members else "")
    for name, (value, description) in constants.items():
        shown = value if len(value) <= 80 else f"{value[:76]} ..."
        text += f"\n.. py:data:: {name}\n   :module: {module}\n   :value: {shown}\n\n"
        text += textwrap.indent(description, "   ") + "\n"
    return f"## `{module}`\n\n```{{eval-rst}}\n{text}```\n"


def _entry(name: str) -> str:
    kind = "autoclass" if name[0].isupper() else "autofunction"
    options = "\n   :members:" if kind == "autoclass" else ""
    return f"## `vitreous.{name}`\n\n```{{eval-rst}}\n.. {kind}:: {ENTRY[name]}.{name}{options}\n   :no-index:\n```\n"
