"""Contract of the Files port: tests that every channel with files passes."""

import os
from collections.abc import Callable
from pathlib import Path

from gpufleet.ports.channel import FetchPlan, Files

FilesFactory = Callable[[Path], Files]
"""Creates a channel that sees the given folder as `/`."""


class FilesContract:
    """Base class. Subclasses define a fixture `make_files`: a function from a root folder to a channel."""

    async def test_reads_named_files(self, tmp_path: Path, make_files: FilesFactory) -> None:
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc/loadavg").write_bytes(b"0.1 0.2 0.3\n")
        (tmp_path / "proc/empty").write_bytes(b"")
        fetched = await make_files(tmp_path).fetch(FetchPlan(files=("/proc/loadavg", "/proc/empty")))
        assert fetched.files == {"/proc/loadavg": b"0.1 0.2 0.3\n", "/proc/empty": b""}
        assert fetched.errors == {}

    async def test_binary_content_is_unchanged(self, tmp_path: Path, make_files: FilesFactory) -> None:
        content = bytes(range(256)) * 700
        (tmp_path / "raw").write_bytes(content)
        fetched = await make_files(tmp_path).fetch(FetchPlan(files=("/raw",)))
        assert fetched.files == {"/raw": content}

    async def test_missing_path_is_an_error(self, tmp_path: Path, make_files: FilesFactory) -> None:
        fetched = await make_files(tmp_path).fetch(FetchPlan(files=("/a",), links=("/b",), filesystems=("/c",)))
        assert fetched.errors == {"/a": "ENOENT", "/b": "ENOENT", "/c": "ENOENT"}

    async def test_pattern_without_match_is_no_error(self, tmp_path: Path, make_files: FilesFactory) -> None:
        (tmp_path / "net").mkdir()
        plan = FetchPlan(files=("/net/*/speed", "/gone/*/x"), links=("/net/*/device",))
        fetched = await make_files(tmp_path).fetch(plan)
        assert (fetched.files, fetched.links, fetched.errors) == ({}, {}, {})

    async def test_wildcard_matches_within_one_segment(self, tmp_path: Path, make_files: FilesFactory) -> None:
        for name in ("net/eth0/speed", "net/eth1/speed", "net/eth1/deep/speed", "net/.hidden/speed", "net/lo/type"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(name)
        fetched = await make_files(tmp_path).fetch(FetchPlan(files=("/net/e*/speed", "/net/[l]o/type")))
        assert sorted(fetched.files) == ["/net/eth0/speed", "/net/eth1/speed", "/net/lo/type"]

    async def test_wildcard_does_not_match_a_leading_dot(self, tmp_path: Path, make_files: FilesFactory) -> None:
        for name in ("seen", ".hidden"):
            (tmp_path / name).write_text(name)
        fetched = await make_files(tmp_path).fetch(FetchPlan(files=("/*",)))
        assert sorted(fetched.files) == ["/seen"]
        fetched = await make_files(tmp_path).fetch(FetchPlan(files=("/.h*",)))
        assert sorted(fetched.files) == ["/.hidden"]

    async def test_links_return_their_target(self, tmp_path: Path, make_files: FilesFactory) -> None:
        for name in ("devices/a", "devices/b", "drivers/nvidia"):
            (tmp_path / name).mkdir(parents=True)
        (tmp_path / "devices/a/driver").symlink_to("../../drivers/nvidia")
        (tmp_path / "dangling").symlink_to("/nowhere")
        fetched = await make_files(tmp_path).fetch(FetchPlan(links=("/devices/*/driver", "/dangling")))
        assert fetched.links == {"/devices/a/driver": "../../drivers/nvidia", "/dangling": "/nowhere"}
        assert fetched.errors == {}

    async def test_reading_a_plain_file_as_link_is_an_error(self, tmp_path: Path, make_files: FilesFactory) -> None:
        (tmp_path / "plain").write_text("x")
        fetched = await make_files(tmp_path).fetch(FetchPlan(links=("/plain",)))
        assert fetched.errors == {"/plain": "EINVAL"}

    async def test_reads_through_links(self, tmp_path: Path, make_files: FilesFactory) -> None:
        (tmp_path / "devices/pci/eth0").mkdir(parents=True)
        (tmp_path / "devices/pci/eth0/speed").write_text("100000\n")
        (tmp_path / "devices/pci/model").write_text("parent\n")
        (tmp_path / "class").mkdir()
        (tmp_path / "class/eth0").symlink_to("../devices/pci/eth0")
        fetched = await make_files(tmp_path).fetch(FetchPlan(files=("/class/*/speed", "/class/eth0/../model")))
        assert fetched.files == {"/class/eth0/speed": b"100000\n", "/class/eth0/../model": b"parent\n"}

    async def test_file_over_the_limit_is_an_error(self, tmp_path: Path, make_files: FilesFactory) -> None:
        (tmp_path / "fits").write_bytes(b"x" * 100)
        (tmp_path / "longer").write_bytes(b"x" * 101)
        fetched = await make_files(tmp_path).fetch(FetchPlan(files=("/fits", "/longer"), max_file_bytes=100))
        assert list(fetched.files) == ["/fits"]
        assert fetched.errors == {"/longer": "EFBIG"}

    async def test_reading_a_folder_as_file_is_an_error(self, tmp_path: Path, make_files: FilesFactory) -> None:
        (tmp_path / "folder").mkdir()
        fetched = await make_files(tmp_path).fetch(FetchPlan(files=("/folder",)))
        assert fetched.errors == {"/folder": "EISDIR"}

    async def test_filesystems_have_figures(self, tmp_path: Path, make_files: FilesFactory) -> None:
        fetched = await make_files(tmp_path).fetch(FetchPlan(filesystems=("/",)))
        figures = os.statvfs(tmp_path)
        assert fetched.filesystems["/"].size_bytes == figures.f_blocks * figures.f_frsize
        assert fetched.filesystems["/"].files == figures.f_files

    async def test_path_planned_twice_is_read_once(self, tmp_path: Path, make_files: FilesFactory) -> None:
        (tmp_path / "a").write_text("x")
        fetched = await make_files(tmp_path).fetch(FetchPlan(files=("/a", "/a", "/*")))
        assert fetched.files == {"/a": b"x"}

    async def test_path_with_a_null_byte_is_an_error(self, tmp_path: Path, make_files: FilesFactory) -> None:
        fetched = await make_files(tmp_path).fetch(FetchPlan(files=("/a\0b",), links=("/c\0",), filesystems=("/d\0",)))
        assert fetched.errors == {"/a\0b": "EINVAL", "/c\0": "EINVAL", "/d\0": "EINVAL"}
