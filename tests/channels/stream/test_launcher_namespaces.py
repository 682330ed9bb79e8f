"""Network namespaces of launcher pods. The kernels of CI have no VSOCK modes: the file with the mode is a fake.

`test_socket_is_opened_in_the_launcher_namespace` enters a real namespace, and needs root.
"""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.channels.stream.launcher_namespaces import LAUNCHER_SOCKET, LauncherNamespaces
from gpufleet.model.errors import ChannelError, ChannelProblem

POD = "7a4b6c1e-33f0-4a56-8c6e-1f2e3d4c5b01"

LAUNCHER = """
import ctypes, os, socket, sys
if "own" in sys.argv:
    assert ctypes.CDLL(None).unshare(0x40000000) == 0
os.chdir(sys.argv[1])
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind("launcher-sock")
    listener.listen()
    print(os.readlink("/proc/self/ns/net"), flush=True)
    sys.stdin.read()
"""


def own_namespace() -> str:
    return str(Path("/proc/thread-self/ns/net").readlink())


def unix_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX)


@contextlib.contextmanager
def launcher(pods: Path, *arguments: str) -> Iterator[str]:
    """Run a process with the socket of virt-launcher; yield its network namespace."""
    folder = (pods / POD / LAUNCHER_SOCKET).parent
    folder.mkdir(parents=True)
    command = [sys.executable, "-c", LAUNCHER, str(folder), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.stdin.close()


def namespaces(tmp_path: Path, mode: str | None = "local", **seams: object) -> LauncherNamespaces:
    file = tmp_path / "ns_mode"
    if mode is not None:
        file.write_text(f"{mode}\n")
    parts = {"owns": lambda _, pod: pod == POD, "enter": lambda _: None, "make_socket": unix_socket, **seams}
    return LauncherNamespaces(tmp_path / "pods", ns_mode=file, **parts)  # type: ignore[arg-type]


async def test_missing_mode_means_global_and_needs_no_launcher(tmp_path: Path) -> None:
    opened = await namespaces(tmp_path, None).open(())
    opened.socket.close()
    assert not opened.is_local


@pytest.mark.parametrize(("mode", "is_local"), [("local", True), ("global", False)])
async def test_mode_is_read_for_each_pod(tmp_path: Path, mode: str, is_local: bool) -> None:
    with launcher(tmp_path / "pods"):
        opened = await namespaces(tmp_path, mode).open((POD,))
    opened.socket.close()
    assert opened.is_local is is_local


@pytest.mark.skipif(os.getuid() != 0, reason="entering a network namespace needs root")
async def test_socket_is_opened_in_the_launcher_namespace(tmp_path: Path) -> None:
    seen: list[str] = []

    def make_socket() -> socket.socket:
        seen.append(own_namespace())
        return unix_socket()

    before = own_namespace()
    with launcher(tmp_path / "pods", "own") as namespace:
        opened = await namespaces(tmp_path, make_socket=make_socket, enter=None).open((POD,))
    opened.socket.close()
    assert seen == [namespace]
    assert namespace != before
    assert own_namespace() == before


async def test_process_outside_the_pod_is_not_entered(tmp_path: Path) -> None:
    """The pod can replace its socket by a link to another process's."""
    entered: list[int] = []
    with launcher(tmp_path / "pods"), pytest.raises(ChannelError) as refused:
        await namespaces(tmp_path, owns=None, enter=entered.append).open((POD,))
    assert refused.value.problem is ChannelProblem.NOT_PERMITTED
    assert entered == []


async def test_missing_permission_is_reported(tmp_path: Path) -> None:
    def enter(_: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    with launcher(tmp_path / "pods"), pytest.raises(ChannelError) as refused:
        await namespaces(tmp_path, enter=enter).open((POD,))
    assert refused.value.problem is ChannelProblem.NOT_PERMITTED


@pytest.mark.parametrize("pods", [(), (POD,), (POD, POD[:-1] + "2")])
async def test_missing_or_ambiguous_launcher_is_an_error(tmp_path: Path, pods: tuple[str, ...]) -> None:
    with pytest.raises(ChannelError) as missing:
        await namespaces(tmp_path).open(pods)
    assert missing.value.problem is ChannelProblem.NO_SUCH_VM
