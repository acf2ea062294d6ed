"""Keep the libraries off the network, quiet, and on one thread."""

from __future__ import annotations

import os

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # before the hub client is imported


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """The models are too small to profit from more threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session", autouse=True)
def _quiet_transformers():
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
