"""Services of the virtual machine: QEMU guest agent, hybrid vsock, and shell commands."""

import contextlib
import json
import socket

import pytest

from tests.vm.machine import VirtualMachine

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


def test_guest_agent_answers(vm: VirtualMachine) -> None:
    with socket.socket(socket.AF_UNIX) as sock, sock.makefile("rb") as lines:
        sock.settimeout(60)
        sock.connect(str(vm.agent))
        sock.sendall(b'\xff{"execute":"guest-sync-delimited","arguments":{"id":5}}\n')
        while b"\xff" not in (line := lines.readline()) or b"error" in line:
            assert line  # skip leftovers of earlier clients, and the error for 0xFF
        assert json.loads(line.rpartition(b"\xff")[2]) == {"return": 5}
        sock.sendall(b'{"execute":"guest-info"}\n')
        offered = {
            one["name"] for one in json.loads(lines.readline())["return"]["supported_commands"] if one["enabled"]
        }
    assert {"guest-exec", "guest-exec-status", "guest-file-open", "guest-file-read"} <= offered


@pytest.mark.parametrize("hello", [b"HELLO 5555\n", b"CONNECT x\n", b"CONNECT 5555 now\n", b"x" * 40])
def test_malformed_hello_closes_the_connection(hello: bytes, vm: VirtualMachine) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(60)
        sock.connect(str(vm.vsock))
        sock.sendall(hello)
        with contextlib.suppress(ConnectionResetError):  # unread data resets the connection
            assert sock.recv(1) == b""


def test_guest_runs_its_own_commands(vm: VirtualMachine) -> None:
    assert vm.run("hostname; false") == (1, f"{vm.name}\n")
    assert vm.run("nvidia-smi -L")[1].startswith("GPU 0: NVIDIA H100")
