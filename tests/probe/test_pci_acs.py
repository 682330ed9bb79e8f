"""Access Control Services of PCI bridges: state from the configuration space, and reasons without it."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.channels.local import LocalFiles
from gpufleet.model.absence import Reason
from gpufleet.model.errors import WireError
from gpufleet.ports.channel import FetchPlan
from gpufleet.probe.facts import FactList
from gpufleet.probe.pci_acs import PCI, acs_plan, acs_state, add_acs_fact, bridge_addresses
from gpufleet.probe.records import Fact
from gpufleet.readers.host.source import FetchedFiles


def space(*capabilities: tuple[int, int, int], length: int = 4096) -> bytes:
    """Return a configuration space with extended capabilities: id, offset, control register (ACS only)."""
    content = bytearray(length)
    following = [offset for _, offset, _ in capabilities[1:]] + [0]
    for (number, offset, control), after in zip(capabilities, following, strict=False):
        content[offset : offset + 4] = (number | 1 << 16 | after << 20).to_bytes(4, "little")
        content[offset + 6 : offset + 8] = control.to_bytes(2, "little")
    return bytes(content)


AER = (0x0001, 0x100, 0)


@pytest.mark.parametrize(
    ("content", "state"),
    [
        (space(AER, (0x000D, 0x148, 0x1D)), "redirect"),  # as the kernel sets it for an active IOMMU
        (space(AER, (0x000D, 0x148, 0x04)), "redirect"),
        (space(AER, (0x000D, 0x148, 0x08)), "redirect"),
        (space(AER, (0x000D, 0x148, 0x11)), "on"),
        (space((0x000D, 0x100, 0)), "off"),
        (space(AER), "none"),
        (space(), "none"),
        (b"\xff" * 4096, "none"),
        (bytes(256), "none"),  # no extended configuration space
    ],
)
def test_state_is_that_of_the_control_register(content: bytes, state: str) -> None:
    assert acs_state(content, "config") == state


@pytest.mark.parametrize("following", [0x40, 0x101, 0x100])
def test_malformed_list_of_capabilities_is_an_error(following: int) -> None:
    content = bytearray(space(AER))
    content[0x100:0x104] = (1 | 1 << 16 | following << 20).to_bytes(4, "little")
    with pytest.raises(WireError):
        acs_state(bytes(content), "config")


@given(st.binary(max_size=600))
def test_any_content_has_a_state_or_an_error(content: bytes) -> None:
    with contextlib.suppress(WireError):
        assert acs_state(bytes(0x100) + content, "config") in ("redirect", "on", "off", "none")


async def fact_of(root: Path) -> Fact:
    files, facts = LocalFiles(root), FactList()
    bridges = bridge_addresses(FetchedFiles(await files.fetch(FetchPlan(files=(f"{PCI}/*/class",)))))
    add_acs_fact(FetchedFiles(await files.fetch(acs_plan(bridges))), bridges, facts)
    return facts.facts[0]


def put(root: Path, address: str, code: str, content: bytes) -> None:
    folder = root / PCI.lstrip("/") / address
    folder.mkdir(parents=True)
    (folder / "class").write_text(code)
    (folder / "config").write_bytes(content)


async def test_bridges_are_counted_by_state(tmp_path: Path) -> None:
    put(tmp_path, "0000:00:01.0", "0x060400\n", space((0x000D, 0x100, 0x1D)))
    put(tmp_path, "0000:01:00.0", "0x060400\n", space((0x000D, 0x100, 0x1D)))
    put(tmp_path, "0000:02:00.0", "0x060400\n", space())
    put(tmp_path, "0000:03:00.0", "0x030200\n", space((0x000D, 0x100, 0)))
    assert (await fact_of(tmp_path)).value == "none (1), redirect (2)"


async def test_configuration_space_for_root_only_is_not_permitted(tmp_path: Path) -> None:
    put(tmp_path, "0000:00:01.0", "0x060400\n", space((0x000D, 0x100, 0x1D)))
    put(tmp_path, "0000:01:00.0", "0x060400\n", bytes(64))
    assert (await fact_of(tmp_path)).absent is Reason.NOT_PERMITTED


async def test_machine_without_bridges_has_no_state(tmp_path: Path) -> None:
    assert (await fact_of(tmp_path)).absent is Reason.NOT_SUPPORTED
