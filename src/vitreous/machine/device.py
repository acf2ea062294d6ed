"""What this machine is and what a run may use of it: device, precision, and the description that a report keeps."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch

from vitreous import __version__
from vitreous.errors import ConfigError

__all__ = ["Machine", "choose_device", "choose_precision", "computes_bf16", "describe_machine", "versions"]

_PACKAGES = ("torch", "torchvision", "lightning", "torchmetrics", "numpy", "scikit-learn", "pillow")


@dataclass(frozen=True)
class Machine:
    """The hardware of a run.

    Attributes:
        cpu: Name of the processor.
        cores: Logical processors that this process may use.
        memory_gib: Main memory in GiB that this process may use; None where the system does not tell.
        gpu: Name of the device when it is not the CPU; None on the CPU.
        bf16: Whether the device computes bfloat16 in hardware.
    """

    cpu: str
    cores: int
    memory_gib: float | None
    gpu: str | None
    bf16: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary, ready for JSON."""
        return asdict(self)


def describe_machine(device: torch.device | None = None) -> Machine:
    """Describe the hardware that a run on `device` has; None means the device that `auto` would choose."""
    device = choose_device("auto") if device is None else device
    gpu = None
    if device.type == "cuda":
        gpu = torch.cuda.get_device_name(device)
    elif device.type == "mps":
        gpu = "Apple GPU (MPS)"
    return Machine(_cpu_name(), _cores(), _memory_gib(), gpu, computes_bf16(device))


def choose_device(name: str = "auto") -> torch.device:
    """Return the device of a run.

    Args:
        name: `cpu`, `cuda`, `mps`, or `auto`: the first of CUDA, MPS and CPU that is there.

    Raises:
        ConfigError: If the device is unknown, or not there.
    """
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, usable in there.items() if usable))
    if name not in there:
        raise ConfigError(f"device '{name}' is unknown: auto, cpu, cuda and mps are known")
    if not there[name]:
        reason = {
            "cuda": "PyTorch finds no CUDA GPU with a working driver"
            if torch.version.cuda
            else f"PyTorch {torch.__version__} is built without CUDA",
            "mps": "it needs an Apple GPU and macOS",
        }[name]
        raise ConfigError(f"device {name} is not available: {reason}. Use device auto or cpu")
    return torch.device(name)


def choose_precision(precision: str, device: torch.device) -> Literal["bf16", "float32"]:
    """Return what a run computes in.

    Args:
        precision: `bf16` or `float32`, which are taken as they are; or `auto`: bf16 where `device` computes it in
            hardware, float32 else.
        device: Where the run takes place.

    Raises:
        ConfigError: If the precision is unknown.
    """
    if precision == "bf16":
        return "bf16"
    if precision == "float32":
        return "float32"
    if precision == "auto":
        return "bf16" if computes_bf16(device) else "float32"
    raise ConfigError(f"precision '{precision}' is unknown: auto, bf16 and float32 are known")


@cache
def computes_bf16(device: torch.device) -> bool:
    """Whether `device` multiplies bfloat16 matrices in hardware, so that bf16 is faster than float32.

    CUDA: compute capability 8.0 and later. CPU: AVX512-BF16 or AMX on x86, the bf16 extension on Arm Linux. MPS: no.
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu":
        return False
    flags = _cpuinfo("flags") or _cpuinfo("Features")  # x86 and Arm spell it differently
    if flags:
        return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags.split())
    # Elsewhere than on Linux only PyTorch knows, by functions that are private and may go.
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(bool(getattr(torch.cpu, probe, bool)()) for probe in probes)


def versions() -> dict[str, str]:
    """Return the versions that can change a result: Python, this package and the libraries that compute."""
    installed = {"vitreous": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            installed[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:  # a vendored build without metadata is no reason to stop
            continue
    return installed | {"torch": torch.__version__, "platform": platform.platform()}


def _cpuinfo(key: str) -> str | None:
    """Return the first value of a key in Linux' list of processors."""
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


def _cores() -> int:
    """Logical processors by affinity, and by the quota that a container runs under."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup("cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit() and int(quota[1]) > 0:
        usable = min(usable, max(1, round(int(quota[0]) / int(quota[1]))))
    return usable


def _memory_gib() -> float | None:
    """Main memory in GiB, or a container's limit where that is lower."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return None
    limit = _cgroup("memory.max")
    if limit.isdigit():
        total = min(total, int(limit))
    return round(total / 2**30, 1)


def _cgroup(name: str) -> str:
    """Return a control group's file (version 2), or an empty text where there is none."""
    try:
        return Path("/sys/fs/cgroup", name).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
