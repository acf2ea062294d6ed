"""Freed memory is kept: counted by the kernel, in a process of its own, since the setting is for good."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

COUNT = """
import resource, sys
import torch
from vitreous.train.allocator import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.zeros(2**24)  # 64 MiB: 16,384 pages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_a_step_faults_in_its_memory_only_once() -> None:
    def count(how: str) -> int:
        run = subprocess.run([sys.executable, "-c", COUNT, how], capture_output=True, text=True, check=True)
        return int(run.stdout)

    assert count("kept") < 1_000 < count("as it comes")
