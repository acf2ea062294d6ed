"""The configuration of a run refuses values that it does not know, in Python as on the command line."""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from vitreous.errors import ConfigError
from vitreous.train import config
from vitreous.train.config import OptimConfig, RunConfig, TuneConfig

CLASSES = [
    value for value in vars(config).values() if dataclasses.is_dataclass(value) and value.__module__ == config.__name__
]


def choices(owner: type) -> dict[str, tuple[str, ...]]:
    """The fields of a dataclass that have a fixed set of values, with these values."""
    hints = get_type_hints(owner)
    return {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal}


FIELDS = [(owner, name, allowed) for owner in CLASSES for name, allowed in choices(owner).items()]


def test_fields_with_choices_are_found():
    assert {OptimConfig, RunConfig, TuneConfig} <= set(CLASSES)
    assert {(OptimConfig, "schedule"), (RunConfig, "precision")} <= {(owner, name) for owner, name, _ in FIELDS}


@pytest.mark.parametrize(("owner", "name", "allowed"), FIELDS, ids=lambda value: getattr(value, "__name__", None))
def test_an_unknown_choice_is_refused_and_the_nearest_is_suggested(owner, name, allowed):
    for value in allowed:
        assert getattr(owner(**{name: value}), name) == value
    for wrong in (f"{allowed[0]}x", "", None, 1):
        with pytest.raises(ConfigError, match=rf"^{name} is '{wrong}', it must be ") as caught:
            owner(**{name: wrong})
        assert all(value in str(caught.value) for value in allowed)
    with pytest.raises(ConfigError, match=rf"Did you mean '{allowed[0]}'\?"):
        owner(**{name: f"{allowed[0]}x"})


@pytest.mark.parametrize("owner", list(filter(choices, CLASSES)))
def test_all_unknown_choices_are_in_one_error(owner):
    wrong = dict.fromkeys(choices(owner), "nonsense")
    with pytest.raises(ConfigError) as caught:
        owner(**wrong)
    assert all(f"{name} is 'nonsense'" in str(caught.value) for name in wrong)


def test_choices_and_ranges_are_in_one_error():
    with pytest.raises(ConfigError, match=r"schedule is 'cosin'.*cosine.*; lr is 0, it must be above 0"):
        OptimConfig(schedule="cosin", lr=0)


def test_a_mode_of_fine_tuning_is_suggested_too():
    with pytest.raises(ConfigError, match=r"tune is 'linaer', it must be .* Did you mean 'linear'\?"):
        TuneConfig("model.safetensors", "linaer")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"betas": (0.9, 1.0)}, r"betas are \(0\.9, 1\.0\), they must be two numbers in \[0, 1\)"),
        ({"betas": (-0.1, 0.9)}, "two numbers"),
        ({"betas": (0.9,)}, "two numbers"),
        ({"momentum": -0.1}, r"momentum is -0\.1, it must be in \[0, 1\)"),
        ({"momentum": 1.0}, r"momentum is 1\.0"),
        ({"final_lr": -0.5}, r"final_lr is -0\.5, it cannot be negative"),
        ({"weight_decay": -1.0}, r"weight_decay is -1\.0, it cannot be negative"),
        *(({name: float("nan")}, f"{name} is nan") for name in ("lr", "muon_lr", "weight_decay", "final_lr", "clip")),
    ],
    ids=str,
)
def test_settings_with_which_no_optimiser_works_are_refused(options, problem):
    with pytest.raises(ConfigError, match=problem):
        OptimConfig(**options)
