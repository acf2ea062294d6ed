"""Freed memory is kept: counts page faults in processes of their own, because the setting is permanent."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from forked import run_forked

COUNT = """
import resource, sys, threading
from concurrent.futures import ThreadPoolExecutor
import torch
from vitreous.machine.allocator import keep_freed_memory
# Threads that ended before the fork left arenas, which new threads take before they share one.
for _ in range(8):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
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


HUGE = """
import resource, sys
import torch
from vitreous.machine.allocator import keep_freed_memory
if sys.argv[1] == "limited":
    resource.setrlimit(resource.RLIMIT_AS, (2**36, 2**36))
keep_freed_memory()
torch.zeros(2**25)  # 128 MiB
lines = dict(line.split(":") for line in open("/proc/self/smaps_rollup") if ":" in line and "-" not in line)
print(int(lines["AnonHugePages"].split()[0]) << 10)
"""
MODE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
@pytest.mark.skipif(not MODE.exists() or "[madvise]" not in MODE.read_text(), reason="the kernel takes no advice")
def test_large_tensors_are_in_huge_pages_unless_addresses_are_limited(tmp_path) -> None:
    def huge(how: str) -> int:
        run = run_forked(tmp_path, how, code=HUGE)
        assert run.returncode == 0, run.stderr
        return int(run.stdout)

    assert huge("limited") == 0
    assert huge("free") > 100 * 2**20
