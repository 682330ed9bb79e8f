"""Named threads."""

import sys
import threading
from pathlib import Path

import pytest

from gpufleet.runtime import named_threads


def test_threads_are_named_in_python() -> None:
    with named_threads(1, "hub-writer") as threads:
        assert threads.submit(lambda: threading.current_thread().name).result().startswith("hub-writer")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_threads_are_named_in_the_kernel() -> None:
    def comm() -> str:
        return Path("/proc/thread-self/comm").read_text().strip()

    with named_threads(2, "hub-writer") as threads, named_threads(1, "hub-with-a-long-name") as long:
        assert {threads.submit(comm).result() for _ in range(4)} == {"hub-writer"}
        assert long.submit(comm).result() == "hub-with-a-long"


def test_threads_run_on_a_system_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpufleet.runtime._COMM", Path("/nowhere/comm"))
    with named_threads(1, "hub-writer") as threads:
        assert threads.submit(lambda: 1).result() == 1
