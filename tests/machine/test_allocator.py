"""Freed memory is kept: counts page faults in processes of their own, because the setting is permanent."""

from __future__ import annotations

import platform

import pytest

from forked import run_forked

COUNT = """
import resource, sys
from concurrent.futures import ThreadPoolExecutor
import torch
from vitreous.machine.allocator import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        torch.zeros(2**25)  # 128 MiB, or 32,768 pages: more than the arena of a thread can keep
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
call = (lambda work: work()) if sys.argv[2] == "main" else lambda work: pool.submit(work).result()
with ThreadPoolExecutor(1) as pool:
    call(faults)
    print(call(faults))
"""


@pytest.mark.parametrize("thread", ["main", "another"])
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_a_step_faults_in_its_memory_only_once(tmp_path, thread) -> None:
    def count(how: str) -> int:
        run = run_forked(tmp_path, how, thread, code=COUNT)
        assert run.returncode == 0, run.stderr
        return int(run.stdout)

    assert count("kept") < 1_000 < count("default")
