"""Local files: contract, confinement to the root, special files, hanging files, and watched threads."""

import asyncio
import fcntl
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.channels.local import LocalFiles
from gpufleet.channels.local.paths import locate
from gpufleet.channels.local.threads import WatchedThreads
from gpufleet.ports.channel import FetchPlan
from tests.channels.contract import FilesContract, FilesFactory


class TestContract(FilesContract):
    @pytest.fixture
    def make_files(self) -> FilesFactory:
        return LocalFiles


class TestConfinement:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        (tmp_path / "secret").write_text("outside")
        root = tmp_path / "root"
        (root / "etc").mkdir(parents=True)
        (root / "etc/inside").write_text("inside")
        return root

    @pytest.mark.parametrize("target", ["../../secret", "../../../../../../../../etc/passwd", "/etc/passwd"])
    async def test_link_cannot_escape_the_root(self, root: Path, target: str) -> None:
        (root / "etc/link").symlink_to(target)
        fetched = await LocalFiles(root).fetch(FetchPlan(files=("/etc/link",)))
        assert fetched.files == {}
        assert fetched.errors == {"/etc/link": "ENOENT"}

    async def test_linked_folder_cannot_escape_the_root(self, root: Path, tmp_path: Path) -> None:
        (root / "etc/up").symlink_to(str(tmp_path))
        (root / "etc/dots").symlink_to("../..")
        fetched = await LocalFiles(root).fetch(FetchPlan(files=("/etc/up/secret", "/etc/*/secret")))
        assert fetched.files == {}

    async def test_dots_in_the_path_cannot_escape_the_root(self, root: Path) -> None:
        fetched = await LocalFiles(root).fetch(FetchPlan(files=("/../secret", "/etc/../../secret")))
        assert fetched.files == {}

    async def test_absolute_link_is_relative_to_the_root(self, root: Path) -> None:
        (root / "link").symlink_to("/etc/inside")
        fetched = await LocalFiles(root).fetch(FetchPlan(files=("/link",)))
        assert fetched.files == {"/link": b"inside"}

    async def test_loop_of_links_is_an_error(self, root: Path) -> None:
        (root / "a").symlink_to("b")
        (root / "b").symlink_to("a")
        fetched = await LocalFiles(root).fetch(FetchPlan(files=("/a",)))
        assert fetched.errors == {"/a": "ELOOP"}

    @given(st.lists(st.sampled_from(["..", "etc", "x", ".", ""]), max_size=12))
    def test_located_paths_stay_inside(self, parts: list[str]) -> None:
        root = "/nowhere/root"
        assert Path(locate(root, "/" + "/".join(parts))).is_relative_to(root)


class TestOddFiles:
    async def test_pipe_is_not_opened(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        fetched = await LocalFiles(tmp_path).fetch(FetchPlan(files=("/pipe",)))
        assert fetched.errors == {"/pipe": "EINVAL"}

    async def test_device_is_not_opened(self) -> None:
        fetched = await LocalFiles().fetch(FetchPlan(files=("/dev/zero",)))
        assert fetched.errors == {"/dev/zero": "EINVAL"}

    async def test_kernel_files_are_read_completely(self) -> None:
        fetched = await LocalFiles().fetch(FetchPlan(files=("/proc/stat", "/proc/self/mountinfo", "/proc/[0-9]*/comm")))
        assert fetched.files["/proc/stat"].startswith(b"cpu ")
        assert b" - proc proc " in fetched.files["/proc/self/mountinfo"]
        assert f"/proc/{os.getpid()}/comm" in fetched.files

    async def test_error_of_the_kernel_is_named(self) -> None:
        fetched = await LocalFiles().fetch(FetchPlan(files=("/proc/self/mem",)))
        assert fetched.errors == {"/proc/self/mem": "EIO"}


@contextmanager
def opening_hangs(path: Path) -> Iterator[None]:
    """Hold a write lease: opening the file blocks in the kernel until the lease is released."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield
    finally:
        os.close(descriptor)
        signal.signal(signal.SIGIO, before)


class TestHanging:
    async def test_hanging_file_does_not_affect_others(self, tmp_path: Path) -> None:
        for name in ("a", "b", "c"):
            (tmp_path / name).write_text(name)
        files = LocalFiles(tmp_path, job_seconds=0.2)
        plan = FetchPlan(files=("/a", "/b", "/c"), filesystems=("/",))
        with opening_hangs(tmp_path / "b"):
            first = await files.fetch(plan)
            assert first.files == {"/a": b"a", "/c": b"c"}
            assert first.errors == {"/b": "ETIMEDOUT"}
            assert list(first.filesystems) == ["/"]

            running = threading.active_count()
            second = await files.fetch(plan)
            assert second.errors == {"/b": "ETIMEDOUT"}
            assert threading.active_count() <= running, "a hanging path uses one thread, however often it is read"

    async def test_file_is_read_again_after_the_hang(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_text("a")
        files = LocalFiles(tmp_path, job_seconds=0.1)
        with opening_hangs(tmp_path / "a"):
            assert (await files.fetch(FetchPlan(files=("/a",)))).errors == {"/a": "ETIMEDOUT"}
        for thread in threading.enumerate():
            if thread.name == "gpufleet-files":
                thread.join(10)
        assert (await files.fetch(FetchPlan(files=("/a",)))).files == {"/a": b"a"}


class TestWatchedThreads:
    async def test_every_hanging_job_is_named_and_the_rest_completes(self) -> None:
        release = threading.Event()
        threads: WatchedThreads[object] = WatchedThreads(job_seconds=0.05, total_seconds=10)
        jobs = [("one", lambda: 1), ("stuck", release.wait), ("two", lambda: 2), ("dead", release.wait)]
        try:
            results, timed_out = await threads.run(jobs)
        finally:
            release.set()
        assert results == {"one": 1, "two": 2}
        assert timed_out == ("stuck", "dead")

    async def test_total_limit_ends_a_run(self) -> None:
        release = threading.Event()
        threads: WatchedThreads[object] = WatchedThreads(job_seconds=10, total_seconds=0.1)
        try:
            results, timed_out = await threads.run([("stuck", release.wait), ("after", lambda: 1)])
        finally:
            release.set()
        assert results == {}
        assert sorted(timed_out) == ["after", "stuck"]

    async def test_event_loop_is_not_blocked(self) -> None:
        release = threading.Event()
        threads: WatchedThreads[object] = WatchedThreads(job_seconds=10, total_seconds=10)
        task = asyncio.create_task(threads.run([("waits", release.wait)]))
        await asyncio.sleep(0)
        release.set()
        assert await task == ({"waits": True}, ())

    async def test_cancelled_run_leaves_its_thread(self) -> None:
        release = threading.Event()
        threads: WatchedThreads[object] = WatchedThreads(job_seconds=10, total_seconds=10)
        started = threading.Event()

        def job() -> bool:
            started.set()
            return release.wait()

        task = asyncio.create_task(threads.run([("waits", job)]))
        assert await asyncio.to_thread(started.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await threads.run([("waits", lambda: 1)]) == ({}, ("waits",))
        release.set()

    async def test_exception_of_a_job_is_raised(self) -> None:
        def broken() -> int:
            raise RuntimeError("defect")

        threads: WatchedThreads[int] = WatchedThreads(job_seconds=10, total_seconds=10)
        with pytest.raises(RuntimeError, match="defect"):
            await threads.run([("broken", broken)])
