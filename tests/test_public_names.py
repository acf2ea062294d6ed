"""Every public name exists, is documented, and can be imported as documented."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
import types
from functools import cache
from pathlib import Path

import pytest

import vitreous
from reference_pages.names import name_pages


@cache
def modules() -> list[types.ModuleType]:
    """Return every module of the package; the package is the first."""
    names = (info.name for info in pkgutil.walk_packages(vitreous.__path__, "vitreous."))
    return [vitreous, *(importlib.import_module(name) for name in names if not name.endswith("__main__"))]


@cache
def reference() -> str:
    """Return the pages of the reference."""
    return "\n".join(name_pages().values())


def documented(value: object) -> bool:
    """Return whether a class or function has a docstring; the signature that a dataclass generates does not count."""
    text = inspect.getdoc(value) or ""
    generated = dataclasses.is_dataclass(value) and text.startswith(f"{getattr(value, '__name__', '')}(")
    return bool(text.strip()) and not generated


def public(module: types.ModuleType) -> list[str]:
    """Return the names in a module's `__all__`."""
    return list(getattr(module, "__all__", []))


def test_public_names_exist_once():
    wrong = {
        module.__name__: [
            name for name in public(module) if not hasattr(module, name) or public(module).count(name) > 1
        ]
        for module in modules()
    }
    assert {module: names for module, names in wrong.items() if names} == {}


def test_public_names_belong_to_their_subpackage():
    """A name may be public twice within a subpackage (`model.vit` re-exports its configuration), never in another."""
    foreign = []
    for module in modules()[1:]:  # of the first: test_the_package_exports_its_public_names
        package = ".".join(module.__name__.split(".")[:2])
        foreign += [
            f"{module.__name__}.{name} is of {value.__module__}"
            for name in public(module)
            if isinstance(value := getattr(module, name), type | types.FunctionType)
            and value.__module__ != package
            and not value.__module__.startswith(f"{package}.")
        ]
    assert foreign == []


def test_public_names_are_documented():
    undocumented = []
    for module in modules():
        for name in public(module):
            value = getattr(module, name)
            if not isinstance(value, type | types.FunctionType):
                continue
            if not documented(value):
                undocumented.append(f"{module.__name__}.{name}")
            members = vars(value).items() if isinstance(value, type) else ()
            undocumented += [
                f"{module.__name__}.{name}.{member}"
                for member, function in members
                if not member.startswith("_")
                and isinstance(function, types.FunctionType | property | classmethod | staticmethod)
                and not documented(getattr(value, member))
            ]
    assert undocumented == []


def test_public_definitions_are_in_all():
    """A class or function without a leading underscore is listed in `__all__`, where a module has one."""
    missing = [
        f"{module.__name__}.{name}"
        for module in modules()
        if hasattr(module, "__all__")
        for name, value in vars(module).items()
        if not name.startswith("_")
        and isinstance(value, type | types.FunctionType)
        and value.__module__ == module.__name__
        and name not in module.__all__
    ]
    assert missing == []


def test_public_names_are_in_the_reference():
    wrong = {}
    for module in modules()[1:]:  # of the first: tests/test_reference.py
        found = re.search(rf"automodule:: {re.escape(module.__name__)}\n   :members: (.*)", reference())
        listed = found[1].split(", ") if found else []
        listed += re.findall(rf"py:data:: (.*)\n   :module: {re.escape(module.__name__)}\n", reference())
        if sorted(listed) != sorted(public(module)):
            wrong[module.__name__] = set(listed) ^ set(public(module))
    assert wrong == {}


def test_constants_in_the_reference_say_what_they_are():
    blocks = re.findall(r"py:data:: (.*)\n   :module: .*\n   :value: .*\n\n(.*)\n", reference())
    assert blocks
    assert [name for name, text in blocks if not text.strip()] == []


def test_the_package_exports_its_public_names():
    from vitreous.accelerate.model import create
    from vitreous.api import calibrate, finetune, inspect
    from vitreous.client import Client
    from vitreous.inspection.explain import explain
    from vitreous.model.config import ViTConfig
    from vitreous.model.vit import VisionTransformer
    from vitreous.predictor import Classifier, load

    names = {
        "Classifier": Classifier,
        "Client": Client,
        "ViTConfig": ViTConfig,
        "VisionTransformer": VisionTransformer,
        "calibrate": calibrate,
        "create": create,
        "explain": explain,
        "finetune": finetune,
        "inspect": inspect,
        "load": load,
    }
    callable_packages = {"evaluate", "train"}  # see tests/test_api.py
    assert set(vitreous.__all__) == set(names) | callable_packages
    assert all(callable(getattr(vitreous, name)) for name in callable_packages)
    assert {name: getattr(vitreous, name) for name in names} == names
    assert set(dir(vitreous)) >= set(names) | {"__version__"}


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(vitreous.__file__).read_text(encoding="utf-8"))
    seen = {
        alias.asname or alias.name
        for block in tree.body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == set(vitreous.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'creat'"):
        vitreous.creat  # noqa: B018


def test_the_package_declares_its_types():
    assert (Path(vitreous.__file__).parent / "py.typed").is_file()
