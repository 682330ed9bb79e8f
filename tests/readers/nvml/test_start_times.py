"""Since when processes live: asked once a process, and anew of whoever gets its number."""

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
    """Give a process that ends when it is let go."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as started:
        yield started
        started.kill()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Give the ids of the processes that /proc was read of, in their order."""
    found: list[int] = []

    def look(root: Path, pid: int) -> bytes:
        found.append(pid)
        return read_stat(root, pid)

    monkeypatch.setattr(processes, "read_stat", look)
    return found


@pytest.fixture
def known() -> Iterator[StartTimeCache]:
    """Give the lives of this machine."""
    made = StartTimeCache(ROOT)
    yield made
    made.close()


def kernels_word(pid: int) -> int | None:
    return parse_start_time(read_stat(ROOT, pid))


def test_a_process_that_lives_on_is_asked_about_once(
    process: subprocess.Popen[bytes], asked: list[int], known: StartTimeCache
) -> None:
    for _ in range(3):
        known.begin()
        assert known.start_time(process.pid) == kernels_word(process.pid) is not None
    assert asked == [process.pid]


def test_one_that_ended_is_not_there_any_more(process: subprocess.Popen[bytes], known: StartTimeCache) -> None:
    assert known.start_time(process.pid) is not None
    process.kill()
    process.wait()
    known.begin()
    assert known.start_time(process.pid) is None


def test_whoever_gets_the_number_of_one_that_ended_is_another(
    process: subprocess.Popen[bytes], known: StartTimeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers of processes cannot be had for the asking: this process stands in for the other."""
    known.start_time(process.pid)
    process.kill()
    process.wait()
    own, descriptor_of = os.getpid(), os.pidfd_open
    monkeypatch.setattr(os, "pidfd_open", lambda _: descriptor_of(own))
    monkeypatch.setattr(processes, "read_stat", lambda *_: read_stat(ROOT, own))
    known.begin()
    assert known.start_time(process.pid) == kernels_word(own) is not None


def test_process_that_ended_during_a_read_is_read_again(
    process: subprocess.Popen[bytes], known: StartTimeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(root: Path, pid: int) -> bytes:
        said = read_stat(root, pid)
        process.kill()
        process.wait()
        return said

    monkeypatch.setattr(processes, "read_stat", look)
    known.start_time(process.pid)
    monkeypatch.undo()
    known.begin()
    assert known.start_time(process.pid) is None


def held() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_nothing_is_held_of_what_nobody_asks_about(process: subprocess.Popen[bytes], known: StartTimeCache) -> None:
    before = held()
    known.start_time(process.pid)
    assert held() == before + 1
    for _ in range(2):
        known.begin()
    assert held() == before


def test_no_more_is_held_than_allowed(
    process: subprocess.Popen[bytes], asked: list[int], known: StartTimeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "MAX_PIDFDS", 1)
    own = os.getpid()
    for _ in range(2):
        known.begin()
        assert known.start_time(own) == kernels_word(own)
        assert known.start_time(process.pid) == kernels_word(process.pid)
    assert asked == [own, process.pid, process.pid]


def test_numbers_of_another_namespace_are_read_and_not_asked_for(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    """A /proc that is mounted from elsewhere has somebody else under the number."""
    folder = tmp_path / "proc" / str(process.pid)
    folder.mkdir(parents=True)
    (tmp_path / "proc/self").symlink_to("1")
    fields, elsewhere = " ".join(["0"] * 19), StartTimeCache(tmp_path)
    for began in (77, 88):
        (folder / "stat").write_text(f"{process.pid} (there) S {fields[:-2]} {began} 0\n")
        elsewhere.begin()
        assert elsewhere.start_time(process.pid) == began
    elsewhere.close()


def test_where_the_kernel_gives_no_descriptors_each_is_read(
    process: subprocess.Popen[bytes], asked: list[int], known: StartTimeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "pidfd_open", refuse)
    for _ in range(2):
        known.begin()
        assert known.start_time(process.pid) == kernels_word(process.pid)
    assert asked == [process.pid, process.pid]


def test_what_is_no_process_has_no_start() -> None:
    known = StartTimeCache(ROOT)
    for pid in (0, 4_194_305, 2**31, 2**70):
        assert known.start_time(pid) is None
    known.begin()
