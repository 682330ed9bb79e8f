"""Virtual machine shared by all tests that restore its state."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.vm.machine import VirtualMachine

PARTS = ("qemu-system-x86_64", "vmlinuz", "dropbear")


@pytest.fixture(scope="session")
def parts(peer: Callable[[str], Path]) -> None:
    """Fail without the packages, or skip where that is allowed."""
    for part in PARTS:
        peer(part)


@pytest.fixture(scope="session")
def _machine(parts: None) -> Iterator[VirtualMachine]:
    with VirtualMachine() as machine:
        yield machine


@pytest.fixture
def vm(_machine: VirtualMachine) -> Iterator[VirtualMachine]:
    """Yield a running machine. A test that stops a service must start it again."""
    yield _machine
    assert _machine.run("kill -0 $(cat /run/engine.pid /run/exporter.pid /run/ssh.pid /run/agent.pid)")[0] == 0
