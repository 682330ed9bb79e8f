"""Threads that the system knows by name."""

import sys
import threading
from pathlib import Path

import pytest

from gpufleet.runtime import named_threads


def test_they_are_called_so_by_python() -> None:
    with named_threads(1, "hub-writer") as threads:
        assert threads.submit(lambda: threading.current_thread().name).result().startswith("hub-writer")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_threads_have_their_names_in_the_system() -> None:
    def comm() -> str:
        return Path("/proc/thread-self/comm").read_text().strip()

    with named_threads(2, "hub-writer") as threads, named_threads(1, "hub-with-a-long-name") as long:
        assert {threads.submit(comm).result() for _ in range(4)} == {"hub-writer"}
        assert long.submit(comm).result() == "hub-with-a-long"


def test_a_system_without_such_a_file_has_threads_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpufleet.runtime._COMM", Path("/nowhere/comm"))
    with named_threads(1, "hub-writer") as threads:
        assert threads.submit(lambda: 1).result() == 1
