"""Every public name exists, is documented, and can be imported as documented."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
import types
from pathlib import Path

import pytest

import vitreous
from reference_pages.names import name_pages

REFERENCE = "\n".join(name_pages().values())
MODULES = ["vitreous"] + [
    info.name for info in pkgutil.walk_packages(vitreous.__path__, "vitreous.") if not info.name.endswith("__main__")
]


def documented(value: object) -> bool:
    """Return whether a class or function has a docstring; the signature that a dataclass generates does not count."""
    text = inspect.getdoc(value) or ""
    generated = dataclasses.is_dataclass(value) and text.startswith(f"{getattr(value, '__name__', '')}(")
    return bool(text.strip()) and not generated


@pytest.fixture(params=MODULES)
def module(request) -> types.ModuleType:
    """Each module of the package."""
    return importlib.import_module(request.param)


def test_public_names_exist(module):
    exported = list(getattr(module, "__all__", []))
    assert len(exported) == len(set(exported)), "__all__ lists a name twice"
    assert [name for name in exported if not hasattr(module, name)] == []


def test_public_names_belong_to_their_subpackage(module):
    """A name may be public twice within a subpackage (`model.vit` re-exports its configuration), never in another."""
    if module is vitreous:
        return  # see test_the_package_exports_its_public_names
    package = ".".join(module.__name__.split(".")[:2])
    foreign = {
        name: value.__module__
        for name in getattr(module, "__all__", [])
        if isinstance(value := getattr(module, name), type | types.FunctionType)
        and value.__module__ != package
        and not value.__module__.startswith(f"{package}.")
    }
    assert foreign == {}


def test_public_names_are_documented(module):
    undocumented = []
    for name in getattr(module, "__all__", []):
        value = getattr(module, name)
        if not isinstance(value, type | types.FunctionType):
            continue
        if not documented(value):
            undocumented.append(name)
        members = vars(value).items() if isinstance(value, type) else ()
        undocumented += [
            f"{name}.{member}"
            for member, function in members
            if not member.startswith("_")
            and isinstance(function, types.FunctionType | property | classmethod | staticmethod)
            and not documented(getattr(value, member))
        ]
    assert undocumented == []


def test_public_definitions_are_in_all(module):
    """A class or function without a leading underscore is listed in `__all__`."""
    if not hasattr(module, "__all__"):
        return
    defined = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and isinstance(value, type | types.FunctionType)
        and value.__module__ == module.__name__
    }
    assert defined - set(module.__all__) == set()


def test_public_names_are_in_the_reference(module):
    if module is vitreous:
        return  # see tests/test_reference.py
    found = re.search(rf"automodule:: {re.escape(module.__name__)}\n   :members: (.*)", REFERENCE)
    listed = found[1].split(", ") if found else []
    listed += re.findall(rf"py:data:: (.*)\n   :module: {re.escape(module.__name__)}\n", REFERENCE)
    assert sorted(listed) == sorted(getattr(module, "__all__", []))


def test_constants_in_the_reference_say_what_they_are(module):
    begin = rf"py:data:: (.*)\n   :module: {re.escape(module.__name__)}\n"
    blocks = re.findall(rf"{begin}   :value: .*\n\n(.*)\n", REFERENCE)
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
