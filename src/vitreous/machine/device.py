"""Chooses the device and precision of a run, and describes the machine for reports."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import re
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch

from vitreous import __version__
from vitreous.errors import ConfigError
from vitreous.machine.cores import num_cores, read_cgroup
from vitreous.machine.free_memory import total_memory

__all__ = [
    "Machine",
    "choose_device",
    "choose_precision",
    "computes_bf16",
    "describe_machine",
    "installed_versions",
    "resolve_device",
    "versions",
]

_PACKAGES = ("torch", "torchvision", "lightning", "torchmetrics", "numpy", "scikit-learn", "pillow")


@dataclass(frozen=True)
class Machine:
    """The hardware of a run."""

    cpu: str
    cores: int  # logical processors that this process may use
    memory_gib: float | None  # main memory that this process may use; None where the system does not report it
    gpu: str | None  # None on the CPU
    bf16: bool  # whether the device computes bfloat16 in hardware

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary for JSON."""
        return asdict(self)


def describe_machine(device: torch.device | None = None) -> Machine:
    """Describe the hardware of a run on `device`; None is the device that `auto` chooses."""
    device = choose_device("auto") if device is None else device
    gpu = "Apple GPU (MPS)" if device.type == "mps" else None
    if device.type == "cuda":
        gpu = torch.cuda.get_device_name(device)
    return Machine(_cpu_name(), num_cores(), _memory_gib(), gpu, computes_bf16(device))


def choose_device(name: str = "auto") -> torch.device:
    """Return the device of a run: `cpu`, `cuda`, `cuda:1`, `mps`, or with `auto` the first of CUDA, MPS and CPU."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, is_available in available.items() if is_available))
    kind, colon, number = name.partition(":")
    if kind not in available or (colon and not (kind == "cuda" and number.isdecimal())):
        raise ConfigError(f"device '{name}' is unknown: use auto, cpu, cuda or mps")
    if not available[kind]:
        reason = "it needs an Apple GPU and macOS"
        if kind == "cuda":
            without = f"PyTorch {torch.__version__} is built without CUDA"
            reason = "PyTorch finds no CUDA GPU with a working driver" if torch.version.cuda else without
        raise ConfigError(f"device {name} is not available: {reason}. Use device auto or cpu")
    if not colon:
        return torch.device(kind)
    if int(number) >= (count := torch.cuda.device_count()):
        raise ConfigError(
            f"device {name} is not available: PyTorch finds {count} CUDA GPUs, cuda:0 to cuda:{count - 1}. Use one "
            "of them"
        )
    return torch.device(kind, int(number))


def resolve_device(device: str | torch.device) -> torch.device:
    """Return a device that works, such as ``cuda:1``; ``auto`` as :func:`choose_device`.

    Raises:
        ConfigError: If it is not available.
    """
    if str(device) == "auto":
        return choose_device()
    try:
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        choose_device(str(device))  # says why, of the kinds that it knows
        raise ConfigError(f"device '{device}' does not work: {error}. Use device auto or cpu") from error
    return torch.device(device)


def choose_precision(precision: str, device: torch.device) -> Literal["bf16", "float32"]:
    """Return the precision of a run: `bf16`, `float32`, or with `auto` bf16 if `device` computes it in hardware."""
    if precision not in ("auto", "bf16", "float32"):
        raise ConfigError(f"precision '{precision}' is unknown: use auto, bf16 or float32")
    return "bf16" if precision == "bf16" or (precision == "auto" and computes_bf16(device)) else "float32"


@cache
def computes_bf16(device: torch.device) -> bool:
    """Return whether `device` multiplies bfloat16 matrices in hardware, which makes bf16 faster than float32.

    CUDA: compute capability 8.0 or later. CPU: AVX512-BF16 or AMX on x86, the bf16 extension on Arm Linux. MPS: no.
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu":
        return False
    flags = _cpuinfo("flags") or _cpuinfo("Features")  # x86 and Arm name it differently
    if flags:
        return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags.split())
    # Outside Linux only private functions of PyTorch know, which may disappear.
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(bool(getattr(torch.cpu, probe, bool)()) for probe in probes)


def versions() -> dict[str, str]:
    """Return the versions of Python, this package and the libraries that can change a result."""
    found = {"vitreous": __version__, "python": platform.python_version(), **installed_versions(_PACKAGES)}
    return found | {"torch": torch.__version__, "platform": platform.platform()}


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    found = {}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # a vendored build may have no metadata
            found[package] = importlib.metadata.version(package)
    return found


def _cpuinfo(key: str) -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(rf"^{key}\s*:\s*(.+)$", text, flags=re.MULTILINE)
    return found.group(1).strip() if found else None


def _cpu_name() -> str:
    if platform.system() == "Darwin":
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        try:
            return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return platform.machine()
    return _cpuinfo("model name") or platform.processor() or platform.machine() or "unknown CPU"


def _memory_gib() -> float | None:
    """Return the main memory, or a container's limit if that is lower."""
    total, limit = total_memory(), read_cgroup("memory.max")
    if total is None:
        return None
    return round(min(total, int(limit) if limit.isdigit() else total) / 2**30, 1)
