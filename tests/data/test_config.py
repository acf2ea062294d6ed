"""Values that a configuration refuses, and the choices that it suggests."""

from __future__ import annotations

import dataclasses
import inspect
import pkgutil
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from vitreous.data import config
from vitreous.data.augment import POLICIES
from vitreous.data.config import AugmentConfig, DataConfig, PreprocessConfig
from vitreous.errors import ConfigError

CONFIGS = [c for _, c in inspect.getmembers(config, dataclasses.is_dataclass) if c.__module__ == config.__name__]
CHOICES = [
    pytest.param(c, name, get_args(hint), id=f"{c.__name__}.{name}")
    for c in CONFIGS
    for name, hint in get_type_hints(c).items()
    if get_origin(hint) is Literal
]


def test_every_configuration_and_choice_is_covered():
    assert {c.__name__ for c in CONFIGS} == set(config.__all__)
    assert {f"{p.values[0].__name__}.{p.values[1]}" for p in CHOICES} >= {
        "AugmentConfig.policy",
        "DataConfig.split",
        "PreprocessConfig.fit",
        "PreprocessConfig.interpolation",
    }


@pytest.mark.parametrize(("make", "field", "allowed"), CHOICES)
def test_an_unknown_choice_is_refused_and_the_nearest_one_suggested(make: type[Any], field: str, allowed: tuple):
    for choice in allowed:
        assert getattr(make(**{field: choice}), field) == choice
        typo = choice + "x"
        with pytest.raises(ConfigError) as caught:
            make(**{field: typo})
        message = str(caught.value)
        assert message.startswith(f"{field} is '{typo}', it must be {allowed[0]}")
        assert message.endswith(f"Did you mean '{choice}'?")


@pytest.mark.parametrize(("make", "field", "allowed"), CHOICES)
def test_without_a_near_choice_all_of_them_are_named(make: type[Any], field: str, allowed: tuple):
    with pytest.raises(ConfigError) as caught:
        make(**{field: "???"})
    assert str(caught.value) == f"{field} is '???', it must be {', '.join(allowed[:-1])} or {allowed[-1]}"


@pytest.mark.parametrize(
    ("make", "fields"),
    [
        (DataConfig, {"val_fraction": 1.0, "split": "x", "workers": -1}),
        (PreprocessConfig, {"crop_ratio": 2.0, "std": (0.0,), "mean": (float("nan"),), "fit": "x"}),
        (AugmentConfig, {"flip": 2.0, "small_first": (2.0,), "resized_crop": 0.0, "mixup": -1.0, "policy": "x"}),
        *((AugmentConfig, {"resized_crop_ratio": ratio}) for ratio in ((0.0, 1.0), (-1.0, 1.0), (2.0, 0.5), (1.0,))),
    ],
)
def test_all_problems_come_in_one_error(make: type[Any], fields: dict[str, Any]):
    with pytest.raises(ConfigError) as caught:
        make(**fields)
    assert [name for name in fields if f"{name} is " not in str(caught.value)] == []


def test_the_policies_are_the_choices_of_the_option():
    assert all(callable(pkgutil.resolve_name(path)) for path in POLICIES.values())
    assert [AugmentConfig(policy=name).policy for name in POLICIES] == list(POLICIES)
