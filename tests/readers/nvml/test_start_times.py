"""Start times of processes: read once per process, and again after its id is reused."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.readers.nvml import processes
from gpufleet.readers.nvml.processes import StartTimeCache, parse_start_time, read_stat

ROOT = Path("/")


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """Return a process that runs until the end of the test."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as started:
        yield started
        started.kill()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the ids of processes whose stat file was read, in order."""
    found: list[int] = []

    def record_read(root: Path, pid: int) -> bytes:
        found.append(pid)
        return read_stat(root, pid)

    monkeypatch.setattr(processes, "read_stat", record_read)
    return found


@pytest.fixture
def cache() -> Iterator[StartTimeCache]:
    """Return an empty start-time cache of this machine."""
    made = StartTimeCache(ROOT)
    yield made
    made.close()


def kernel_start_time(pid: int) -> int | None:
    return parse_start_time(read_stat(ROOT, pid))


def test_start_time_of_a_running_process_is_read_once(
    process: subprocess.Popen[bytes], reads: list[int], cache: StartTimeCache
) -> None:
    for _ in range(3):
        cache.begin()
        assert cache.start_time(process.pid) == kernel_start_time(process.pid) is not None
    assert reads == [process.pid]


def test_ended_process_has_no_start_time(process: subprocess.Popen[bytes], cache: StartTimeCache) -> None:
    assert cache.start_time(process.pid) is not None
    process.kill()
    process.wait()
    cache.begin()
    assert cache.start_time(process.pid) is None


def test_reused_process_id_gets_a_new_start_time(
    process: subprocess.Popen[bytes], cache: StartTimeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process stands in for the one that reuses the id, because ids cannot be chosen."""
    cache.start_time(process.pid)
    process.kill()
    process.wait()
    own, descriptor_of = os.getpid(), os.pidfd_open
    monkeypatch.setattr(os, "pidfd_open", lambda _: descriptor_of(own))
    monkeypatch.setattr(processes, "read_stat", lambda *_: read_stat(ROOT, own))
    cache.begin()
    assert cache.start_time(process.pid) == kernel_start_time(own) is not None


def test_process_that_ended_during_a_read_is_read_again(
    process: subprocess.Popen[bytes], cache: StartTimeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record_read(root: Path, pid: int) -> bytes:
        stat = read_stat(root, pid)
        process.kill()
        process.wait()
        return stat

    monkeypatch.setattr(processes, "read_stat", record_read)
    cache.start_time(process.pid)
    monkeypatch.undo()
    cache.begin()
    assert cache.start_time(process.pid) is None


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_descriptor_of_an_unused_entry_is_closed(process: subprocess.Popen[bytes], cache: StartTimeCache) -> None:
    before = open_descriptors()
    cache.start_time(process.pid)
    assert open_descriptors() == before + 1
    for _ in range(2):
        cache.begin()
    assert open_descriptors() == before


def test_open_descriptors_are_limited(
    process: subprocess.Popen[bytes], reads: list[int], cache: StartTimeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "MAX_PIDFDS", 1)
    own = os.getpid()
    for _ in range(2):
        cache.begin()
        assert cache.start_time(own) == kernel_start_time(own)
        assert cache.start_time(process.pid) == kernel_start_time(process.pid)
    assert reads == [own, process.pid, process.pid]


def test_processes_of_another_namespace_use_no_pidfd(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    """A /proc mounted from another namespace may show another process under the same id."""
    folder = tmp_path / "proc" / str(process.pid)
    folder.mkdir(parents=True)
    (tmp_path / "proc/self").symlink_to("1")
    fields, elsewhere = " ".join(["0"] * 19), StartTimeCache(tmp_path)
    for began in (77, 88):
        (folder / "stat").write_text(f"{process.pid} (there) S {fields[:-2]} {began} 0\n")
        elsewhere.begin()
        assert elsewhere.start_time(process.pid) == began
    elsewhere.close()


def test_without_pidfds_start_times_are_always_read(
    process: subprocess.Popen[bytes], reads: list[int], cache: StartTimeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "pidfd_open", refuse)
    for _ in range(2):
        cache.begin()
        assert cache.start_time(process.pid) == kernel_start_time(process.pid)
    assert reads == [process.pid, process.pid]


def test_invalid_process_id_has_no_start_time() -> None:
    cache = StartTimeCache(ROOT)
    for pid in (0, 4_194_305, 2**31, 2**70):
        assert cache.start_time(pid) is None
    cache.begin()
