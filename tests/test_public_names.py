"""Every name that a module offers exists, is documented, and can be reached the way the documentation says."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import types
from pathlib import Path

import pytest

import vitreous

MODULES = ["vitreous"] + [
    info.name for info in pkgutil.walk_packages(vitreous.__path__, "vitreous.") if not info.name.endswith("__main__")
]


def documented(value: object) -> bool:
    """Whether a class or function has a docstring that a person wrote: a dataclass without one gets its signature."""
    text = inspect.getdoc(value) or ""
    generated = dataclasses.is_dataclass(value) and text.startswith(f"{getattr(value, '__name__', '')}(")
    return bool(text.strip()) and not generated


@pytest.fixture(params=MODULES)
def module(request) -> types.ModuleType:
    """Each module of the package, imported."""
    return importlib.import_module(request.param)


def test_what_a_module_offers_exists(module):
    offered = list(getattr(module, "__all__", []))
    assert len(offered) == len(set(offered)), "a name stands twice in __all__"
    assert [name for name in offered if not hasattr(module, name)] == []


def test_what_a_module_offers_is_its_rooms_own(module):
    """A name may be offered twice inside a room (`model.vit` shows its configuration), never in another room."""
    if module is vitreous:
        return  # the facade: test_the_package_offers_what_it_says
    room = ".".join(module.__name__.split(".")[:2])
    foreign = {
        name: value.__module__
        for name in getattr(module, "__all__", [])
        if isinstance(value := getattr(module, name), type | types.FunctionType)
        and value.__module__ != room
        and not value.__module__.startswith(f"{room}.")
    }
    assert foreign == {}


def test_what_a_module_offers_is_documented(module):
    silent = []
    for name in getattr(module, "__all__", []):
        value = getattr(module, name)
        if not isinstance(value, type | types.FunctionType):
            continue
        if not documented(value):
            silent.append(name)
        members = vars(value).items() if isinstance(value, type) else ()
        silent += [
            f"{name}.{member}"
            for member, function in members
            if not member.startswith("_")
            and isinstance(function, types.FunctionType | property | classmethod | staticmethod)
            and not documented(getattr(value, member))
        ]
    assert silent == []


def test_public_definitions_are_offered(module):
    """A class or function without a leading underscore is public: it stands in `__all__`, or gets the underscore."""
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


def test_the_package_offers_what_it_says():
    from vitreous.api import finetune
    from vitreous.model.config import ViTConfig
    from vitreous.model.sizes import create
    from vitreous.model.vit import VisionTransformer
    from vitreous.predictor import Classifier, load

    homes = {
        "Classifier": Classifier,
        "ViTConfig": ViTConfig,
        "VisionTransformer": VisionTransformer,
        "create": create,
        "finetune": finetune,
        "load": load,
    }
    rooms = {"evaluate", "train"}  # functions, and packages of the same name: tests/test_api.py
    assert set(vitreous.__all__) == set(homes) | rooms
    assert all(callable(getattr(vitreous, name)) for name in rooms)
    assert {name: getattr(vitreous, name) for name in homes} == homes
    assert set(dir(vitreous)) >= set(homes) | {"__version__"}


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


def test_types_are_marked_as_shipped():
    assert (Path(vitreous.__file__).parent / "py.typed").is_file()
