"""Domains of a real libvirtd: domains with a GPU are found, with the access paths of their description."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpufleet.agent.guests.libvirt import LibvirtSource
from gpufleet.channels.libvirt import LibvirtDomains
from gpufleet.channels.local import LocalFiles
from gpufleet.channels.stream.dialers import UnixDialer
from gpufleet.codecs.libvirt_domain import parse_domain
from gpufleet.config.guests import DcgmChannel, LibvirtConfig, MetricsChannel, QemuAgentChannel
from gpufleet.ports.guests import GuestListing
from tests.support import peers
from tests.support.libvirt import Libvirt, lacking
from tests.support.processes import Gpufleet, free_port, get_json
from tests.support.waiting import wait_until
from tests.vm.machine import environment

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

UID = "5a1c3f0e-8f5b-4d0a-9d5e-3c1f4a2b6d70"
GPU, VF, NIC, OTHER, UNKNOWN = "0x3b", "0x3c", "0x5e", "0x60", "0x99"
VGPU = "c2177883-f1bb-47f0-914d-32a22e3a8804"


def pci(bus: str) -> str:
    return (
        "<hostdev mode='subsystem' type='pci' managed='yes'><source>"
        f"<address domain='0x0000' bus='{bus}' slot='0x00' function='0x0'/></source></hostdev>"
    )


MDEV = f"<hostdev mode='subsystem' type='mdev' model='vfio-pci'><source><address uuid='{VGPU}'/></source></hostdev>"
VSOCK = "<vsock model='virtio'><cid auto='no' address='42'/></vsock>"


def channel(name: str, path: str) -> str:
    return f"<channel type='unix'><source mode='bind' path='{path}'/><target type='virtio' name='{name}'/></channel>"


def domain(number: int, devices: str) -> str:
    uid = UID[:-1] + str(number)
    return (
        f"<domain type='test'><name>train-{number}</name><uuid>{uid}</uuid><memory>1024</memory>"
        f"<os><type arch='x86_64'>hvm</type></os><devices>{devices}</devices></domain>"
    )


@pytest.fixture(scope="module")
def libvirt() -> Iterator[Libvirt]:
    with Libvirt() as one:
        yield one


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """Sysfs of a host with PCI devices and a mediated device."""
    for bus, vendor, kind in (
        (GPU, 0x10DE, 0x030200),
        (VF, 0x10DE, 0x030200),
        (NIC, 0x15B3, 0x020000),
        (OTHER, 0x1002, 0x030000),
    ):
        folder = tmp_path / "sys/bus/pci/devices" / f"0000:{bus[2:]}:00.0"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"0x{vendor:04x}\n")
        (folder / "class").write_text(f"0x{kind:06x}\n")
    mdevs = tmp_path / "sys/bus/mdev/devices"
    mdevs.mkdir(parents=True)
    (mdevs / VGPU).symlink_to(f"../../../devices/pci0000:3a/0000:3a:00.0/0000:{GPU[2:]}:00.0/{VGPU}")
    return tmp_path


def source(libvirt: Libvirt, host: Path, uri: str, *, query_seconds: float = 60.0) -> LibvirtSource:
    settings = LibvirtConfig(enabled=True, socket=str(libvirt.socket), uri=uri)
    domains = LibvirtDomains(UnixDialer(libvirt.socket), uri)
    return LibvirtSource(domains, LocalFiles(host), settings, query_seconds=query_seconds)


async def list_guests(libvirt: Libvirt, host: Path, *domains: str) -> GuestListing:
    file = libvirt.put("node.xml", f"<node>{''.join(domains)}</node>")
    return await source(libvirt, host, f"test://{file}").list_guests()


async def test_domains_with_gpus_are_found_with_their_access_paths(libvirt: Libvirt, host: Path) -> None:
    agents = channel("org.qemu.guest_agent.0", "/run/a") + channel("org.gpufleet.guest_agent.0", "/run/b")
    listing = await list_guests(
        libvirt,
        host,
        domain(1, pci(GPU) + pci(VF) + MDEV + pci(NIC) + VSOCK + agents),
        domain(2, pci(NIC) + pci(OTHER) + VSOCK),
        domain(3, MDEV),
        domain(4, pci(UNKNOWN)),
    )
    assert listing.problems == {}
    found = {label.partition(" ")[0]: guest for label, guest in listing.guests.items()}
    assert list(found) == ["train-1", "train-3", "train-4"]
    first = found["train-1"]
    assert (first.title, first.uid, first.gpus) == ("train-1", UID[:-1] + "1", 3)
    assert first.channels == (
        DcgmChannel(address="vsock://42:5555"),
        MetricsChannel(address="vsock://42:9400"),
        QemuAgentChannel(socket="/run/b"),  # libvirt uses the other agent itself
    )
    assert (found["train-3"].gpus, found["train-3"].channels) == (1, ())
    assert found["train-4"].gpus is None


async def test_invalid_domain_affects_only_itself(libvirt: Libvirt, host: Path) -> None:
    many = "".join(pci(f"0x{n:02x}") for n in range(256)) + pci("0x00").replace("slot='0x00'", "slot='0x01'")
    odd = domain(3, MDEV).replace("train-3", "train\u00a0-3")
    listing = await list_guests(libvirt, host, domain(1, many), domain(2, MDEV), odd)
    assert [guest.name for guest in listing.guests.values()] == ["train-2"]
    assert "more than 256 devices of the host" in listing.problems["domain train-1"]
    assert "domain: name:" in listing.problems["domain train\u00a0-3"]


async def test_domains_are_kept_while_libvirt_is_down(libvirt: Libvirt, host: Path) -> None:
    file = libvirt.put("node.xml", f"<node>{domain(1, MDEV)}</node>")
    libvirt_source = source(libvirt, host, f"test://{file}")
    before = (await libvirt_source.list_guests()).guests
    assert len(before) == 1
    libvirt.stop()
    gone = await libvirt_source.list_guests()
    libvirt.start()
    assert gone.guests == before
    assert str(libvirt.socket) in gone.problems[str(libvirt.socket)]
    libvirt.put("node.xml", f"<node>{domain(2, pci(NIC))}</node>")
    assert await libvirt_source.list_guests() == GuestListing({}, {})


async def test_connections_to_libvirt_are_closed_properly(libvirt: Libvirt, host: Path) -> None:
    before = libvirt.log().count("End of file")
    for _ in range(2):  # libvirt handles the end of the first connection before the second
        await list_guests(libvirt, host, domain(1, MDEV))
    refused = await source(libvirt, host, "no-such:///left-in-peace").list_guests()
    wait_until(lambda: "no-such:///left-in-peace" in libvirt.log(), what="the refusal to be logged")
    assert libvirt.log().partition("no-such:///left-in-peace")[0].count("End of file") == before
    assert "no connection driver available" in refused.problems[str(libvirt.socket)]


async def test_hanging_or_invalid_libvirt_is_reported(tmp_path: Path, host: Path) -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4)
        writer.write(b"\xff\xff\xff\xff" + bytes(100))
        await reader.read()
        writer.close()

    for behaviour, message in ((hang, "no answer within 0.2 s"), (lie, "4294967295 bytes, more than")):
        path = tmp_path / behaviour.__name__
        async with await asyncio.start_unix_server(behaviour, path):
            settings = LibvirtConfig(enabled=True, socket=str(path))
            domains = LibvirtDomains(UnixDialer(path), settings.uri)
            libvirt_source = LibvirtSource(domains, LocalFiles(host), settings, query_seconds=0.2)
            assert message in (await libvirt_source.list_guests()).problems[str(path)]


async def test_running_qemu_domain_is_parsed(libvirt: Libvirt, host: Path) -> None:
    """QEMU with emulation. No device is passed through here, but channels and identity are real."""
    qemu = peers.find("qemu-system-x86_64")
    if qemu is None or not libvirt.is_whole:
        lacking("no QEMU, or no namespace for the files of libvirtd: no domain can run here")
    assert qemu is not None
    variables = "".join(
        f"export {name}='{value}'\n" for name, value in environment(qemu).items() if name not in os.environ
    )
    share = qemu.parents[1] / "share"
    wrapper = libvirt.put(
        "qemu", f'#!/bin/sh\n{variables}exec {qemu} -L {share / "qemu"} -L {share / "seabios"} "$@"\n', mode=0o755
    )
    agent = channel("org.gpufleet.guest_agent.0", f"{libvirt.folder}/agent.sock")
    libvirt.put(
        "real.xml",
        f"<domain type='qemu'><name>real</name><uuid>{UID}</uuid><memory unit='MiB'>64</memory><os>"
        f"<type arch='x86_64' machine='q35'>hvm</type></os><devices><emulator>{wrapper}</emulator>{agent}</devices>"
        "</domain>",
    )
    libvirt_source = source(libvirt, host, "qemu:///session")
    domains = LibvirtDomains(UnixDialer(libvirt.socket), "qemu:///session")
    libvirt.virsh("create", str(libvirt.folder / "real.xml"))
    try:
        (real,) = await domains.domains()
        assert (real.name, real.uuid) == ("real", UID)
        assert parse_domain(real.xml).channels == {"org.gpufleet.guest_agent.0": f"{libvirt.folder}/agent.sock"}
        assert (await libvirt_source.list_guests()).guests == {}  # the domain has no GPU
        libvirt.virsh("suspend", "real")
        assert len(await domains.domains()) == 1
    finally:
        libvirt.virsh("destroy", "real")
    assert await domains.domains() == []


def test_agent_follows_domain_changes(libvirt: Libvirt, tmp_path: Path) -> None:
    """The domains use no device of this machine: their expected GPU count is unknown and they have no access path."""
    file = libvirt.put("node.xml", f"<node>{domain(1, MDEV)}</node>")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    (tmp_path / "guests.d").mkdir()
    (tmp_path / "agent.toml").write_text(
        f'listen = "127.0.0.1:{port}"\nguest_folder = "{tmp_path / "guests.d"}"\n'
        f'[libvirt]\nenabled = true\nsocket = "{libvirt.socket}"\nuri = "test://{file}"\n'
        "[readers.nvml]\nenabled = false\n"
    )
    arguments = ["agent", "--config", str(tmp_path / "agent.toml"), "--state", str(tmp_path / "state")]

    def guests() -> dict[str, Any]:
        return {one["name"]: one for one in get_json(f"{url}/v1/snapshot")["guests"]}

    with Gpufleet(arguments, tmp_path / "agent.log", {}) as agent:
        agent.wait_for(f"{url}/readyz")
        wait_until(lambda: "train-1" in guests(), seconds=60, what="the domain to be listed")
        found = guests()["train-1"]
        assert (found["state"], found["found_by"]) == ("not_enabled", "libvirt: train-1 (1)")
        assert "vsock" in found["detail"]
        assert found["host"]["readings"]["guest_expected_gpus"]["absent"] == "not_collected"
        guest_file = (
            f'name = "by-file"\nvm_uuid = "{found["vm_uuid"]}"\n'
            f'[[channels]]\ntype = "dcgm"\naddress = "unix://{tmp_path}/none"\n'
        )
        (tmp_path / "guests.d" / ".a").write_text(guest_file)
        (tmp_path / "guests.d" / ".a").rename(tmp_path / "guests.d" / "a.toml")
        wait_until(lambda: list(guests()) == ["by-file"], seconds=60, what="the file to take precedence")
        assert guests()["by-file"]["found_by"] == "folder: a.toml"
        assert guests()["by-file"]["access_paths"][0]["reason"] == "guest_unreachable"
        assert get_json(f"{url}/v1/snapshot")["capabilities"]["guests"] == "available"
        libvirt.put("node.xml", f"<node>{domain(2, MDEV)}</node>")
        wait_until(lambda: sorted(guests()) == ["by-file", "train-2"], seconds=60, what="the new domain to be listed")
        libvirt.put("node.xml", "<node/>")
        wait_until(lambda: list(guests()) == ["by-file"], seconds=60, what="the domain to be gone")
