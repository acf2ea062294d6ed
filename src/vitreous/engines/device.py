"""Which device computes."""

from __future__ import annotations

import torch

from vitreous.errors import ConfigError

__all__ = ["choose_device"]


def choose_device(device: str | torch.device) -> torch.device:
    """Return the device that was asked for; ``auto`` is CUDA, else Apple's GPU, else the CPU.

    Raises:
        ConfigError: If it is not there.
    """
    if str(device) == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        return torch.device(name)
    try:
        chosen = torch.device(device)
        torch.zeros(1, device=chosen).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(f"device '{device}' is not there: use auto, cpu, cuda or mps") from error
    return chosen
