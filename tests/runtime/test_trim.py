"""Trimming: unused memory is returned to the system."""

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can trim its heap")

GAPS = """
import asyncio
from concurrent.futures import ThreadPoolExecutor
from gpufleet.runtime import trim_memory, trim_regularly

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

def leave_gaps():
    held = [bytes(100_000) for _ in range(400)]
    return bytes(100_000)  # above the others, so that the heap does not shrink by itself

"""

ONCE = """
last = leave_gaps()
before = resident()
trim_memory()
print(before - resident())
"""

REGULARLY = """
async def main():
    with ThreadPoolExecutor(1) as thread:
        trimming = asyncio.create_task(trim_regularly(thread, 0.01))
        for _ in range(2):
            last = leave_gaps()
            before = resident()
            async with asyncio.timeout(30):
                while before - resident() < 20_000_000:
                    await asyncio.sleep(0.01)
        trimming.cancel()
    print(before - resident())

asyncio.run(main())
"""


@pytest.mark.parametrize("script", [ONCE, REGULARLY], ids=["once", "regularly"])
def test_free_memory_is_returned_to_the_system(script: str) -> None:
    done = subprocess.run([sys.executable, "-c", GAPS + script], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 20_000_000
