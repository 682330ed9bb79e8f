"""Trimming: unused memory is returned to the system."""

import platform
import subprocess
import sys

import pytest

SCRIPT = """
from gpufleet.runtime import trim_memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

held = [bytes(100_000) for _ in range(400)]
last = bytes(100_000)  # above the others, so that the heap does not shrink by itself
del held
before = resident()
trim_memory()
print(before - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can trim its heap")
def test_free_memory_is_returned_to_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 20_000_000
