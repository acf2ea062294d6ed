"""The device, precision and description of this machine agree with what the system and PyTorch report."""

from __future__ import annotations

import json
import os
import platform

import pytest
import torch

from vitreous.errors import ConfigError
from vitreous.machine.device import choose_device, choose_precision, computes_bf16, describe_machine, versions
from vitreous.train.setup import describe_hardware


def test_describes_this_machine() -> None:
    machine = describe_machine(torch.device("cpu"))
    assert machine.cpu
    assert 1 <= machine.cores <= (os.cpu_count() or 1)
    assert machine.memory_gib is None or 0.1 < machine.memory_gib < 1e5
    assert machine.gpu is None
    assert json.loads(json.dumps(machine.to_dict()))["bf16"] is computes_bf16(torch.device("cpu"))


def test_auto_chooses_the_fastest_available_device() -> None:
    kind = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    assert choose_device("auto") == torch.device(kind)
    assert choose_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["cuda", "mps"])
def test_an_unavailable_device_is_an_error_with_a_remedy(name: str) -> None:
    if {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}[name]:
        pytest.skip(f"{name} is on this machine")
    with pytest.raises(ConfigError, match=rf"device {name} is not available: .* Use device auto or cpu$"):
        choose_device(name)


def test_unknown_names_are_errors() -> None:
    with pytest.raises(ConfigError, match="device 'gpu' is unknown: use auto, cpu, cuda or mps"):
        choose_device("gpu")
    with pytest.raises(ConfigError, match="precision 'fp8' is unknown: use auto, bf16 or float32"):
        choose_precision("fp8", torch.device("cpu"))


def test_precision_is_as_requested_and_auto_follows_the_hardware() -> None:
    cpu = torch.device("cpu")
    assert choose_precision("bf16", cpu) == "bf16"
    assert choose_precision("float32", cpu) == "float32"
    assert choose_precision("auto", cpu) == ("bf16" if computes_bf16(cpu) else "float32")
    assert choose_precision("auto", torch.device("mps")) == "float32"


def test_bf16_agrees_with_torch_on_x86() -> None:
    if platform.machine() not in ("x86_64", "AMD64") or not hasattr(torch.cpu, "_is_avx512_bf16_supported"):
        pytest.skip("PyTorch does not report bf16 support of this processor")
    if torch.cpu._is_avx512_bf16_supported():
        assert computes_bf16(torch.device("cpu"))


def test_versions_match_the_modules() -> None:
    import lightning
    import numpy as np

    import vitreous

    installed = versions()
    assert installed["vitreous"] == vitreous.__version__
    assert installed["python"] == platform.python_version()
    assert (installed["torch"], installed["numpy"]) == (torch.__version__, np.__version__)
    assert installed["lightning"] == lightning.__version__


def test_bf16_without_hardware_support_is_reported_as_slow() -> None:
    cpu = torch.device("cpu")
    assert ("float32 is faster" in describe_hardware(cpu, "bf16")) is not computes_bf16(cpu)
    assert "faster" not in describe_hardware(cpu, "float32")
