"""Pages of every public name: one of the package's own names, and one for each subpackage.

The names are those in `__all__`, read from the source, so that listing them imports nothing. Sphinx's autodoc, which
imports the modules, writes the docstrings.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

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

Every public name of every module, {count:,} in all, with its docstring. A package's own says in which order to read it.

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
    return f"## `{module}`\n\n```{{eval-rst}}\n.. automodule:: {module}\n   :members: {', '.join(names)}\n```\n"


def _entry(name: str) -> str:
    kind = "autoclass" if name[0].isupper() else "autofunction"
    options = "\n   :members:" if kind == "autoclass" else ""
    return f"## `vitreous.{name}`\n\n```{{eval-rst}}\n.. {kind}:: {ENTRY[name]}.{name}{options}\n   :no-index:\n```\n"
