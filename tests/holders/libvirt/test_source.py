"""libvirt as a holder source: claims of domains, and failures of libvirt."""

import asyncio
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpufleet.channels.libvirt import LibvirtDomains
from gpufleet.channels.local import LocalFiles
from gpufleet.channels.stream.dialers import UnixDialer
from gpufleet.holders.libvirt import LibvirtHolders
from gpufleet.model.absence import Reason
from gpufleet.model.errors import ChannelError, ChannelProblem, HolderError, WireError
from gpufleet.model.holdings import Holder, HolderKind, Method, Owner, Share
from gpufleet.ports.holder import DeviceName, HolderClaim, HolderReport, Naming
from gpufleet.ports.hypervisor import DomainDocument
from tests.support.libvirt import Libvirt

UID = "5a1c3f0e-8f5b-4d0a-9d5e-3c1f4a2b6d70"
VMI_UID = "b9a53f4c-6c2f-4b2f-8c1a-0f1e2d3c4b5a"
VGPU = "c2177883-f1bb-47f0-914d-32a22e3a8804"
GPU, NIC = "3b", "5e"

KUBEVIRT = (
    '<metadata><kubevirt xmlns="http://kubevirt.io"><uid>b9a53f4c-6c2f-4b2f-8c1a-0f1e2d3c4b5a</uid>'
    "<graceperiod><deletionGracePeriodSeconds>30</deletionGracePeriodSeconds></graceperiod></kubevirt></metadata>"
)
MDEV = f"<hostdev mode='subsystem' type='mdev' model='vfio-pci'><source><address uuid='{VGPU}'/></source></hostdev>"


def pci(bus: str) -> str:
    return (
        "<hostdev mode='subsystem' type='pci' managed='yes'><source>"
        f"<address domain='0x0000' bus='0x{bus}' slot='0x00' function='0x0'/></source></hostdev>"
    )


def document(devices: str, *, name: str = "train-0", metadata: str = "", number: int = 3) -> DomainDocument:
    xml = f"<domain type='kvm' id='{number}'><name>n</name>{metadata}<devices>{devices}</devices></domain>"
    return DomainDocument(name=name, uuid=UID, id=number, xml=xml.encode())


class FakeHypervisor:
    def __init__(self, *documents: DomainDocument, error: Exception | None = None, seconds: float = 0) -> None:
        self.documents, self.error, self.seconds = documents, error, seconds

    async def domains(self) -> Sequence[DomainDocument]:
        await asyncio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        return self.documents


@pytest.fixture
def host(tmp_path: Path) -> Path:
    for bus, vendor, kind in ((GPU, "0x10de", "0x030200"), (NIC, "0x15b3", "0x020000")):
        folder = tmp_path / "sys/bus/pci/devices" / f"0000:{bus}:00.0"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{kind}\n")
    mdevs = tmp_path / "sys/bus/mdev/devices"
    mdevs.mkdir(parents=True)
    (mdevs / VGPU).symlink_to(f"../../../devices/pci0000:3a/0000:3a:00.0/0000:{GPU}:00.0/{VGPU}")
    return tmp_path


async def report(host: Path, *documents: DomainDocument) -> HolderReport:
    return await LibvirtHolders(FakeHypervisor(*documents), LocalFiles(host)).report()


async def test_domain_holds_its_passed_through_devices(host: Path) -> None:
    found = await report(host, document(pci(GPU) + pci(NIC) + pci("99") + MDEV))
    holder = Holder(kind=HolderKind.VM, id=UID, name="train-0")
    own = [DeviceName(Naming.PCI, address, address) for address in ("0000:3b:00.0", "0000:99:00.0")]
    assert found.claims == (
        HolderClaim(holder=holder, devices=tuple(own), method=Method.HYPERVISOR, share=Share.EXCLUSIVE),
        HolderClaim(
            holder=holder,
            devices=(DeviceName(Naming.MDEV, VGPU, VGPU),),
            method=Method.HYPERVISOR,
            share=Share.VGPU,
        ),
    )
    assert found.claims[0].holder.name == "train-0"
    assert (found.complete, found.lists, found.listed) == (True, HolderKind.VM, frozenset({(HolderKind.VM, UID)}))


async def test_domain_without_gpu_is_listed_without_claims(host: Path) -> None:
    found = await report(host, document(pci(NIC)))
    assert (found.claims, found.listed) == ((), frozenset({(HolderKind.VM, UID)}))


async def test_domain_of_kubevirt_names_its_instance(host: Path) -> None:
    (claim,) = (await report(host, document(pci(GPU), name="ml_train-0", metadata=KUBEVIRT))).claims
    assert (claim.holder.namespace, claim.holder.name, claim.holder.id) == ("ml", "train-0", UID)
    assert claim.holder.owners == (
        Owner(kind="VirtualMachineInstance", name="train-0", uid=VMI_UID, api_version="kubevirt.io/v1"),
    )
    (other,) = (await report(host, document(pci(GPU), name="ml_train-0"))).claims
    assert (other.holder.namespace, other.holder.name, other.holder.owners) == ("", "ml_train-0", ())


async def test_definition_that_cannot_be_parsed_costs_only_its_domain(host: Path) -> None:
    bad = DomainDocument(name="bad\x1b[2J" + "x" * 300, uuid=str(uuid.UUID(int=7)), id=4, xml=b"<domain>")
    found = await report(host, bad, document(pci(GPU)))
    assert [claim.holder.id for claim in found.claims] == [UID]
    assert not found.complete
    assert "\x1b" not in found.detail
    assert len(found.listed) == 2


@pytest.mark.parametrize(
    ("error", "absence"),
    [
        (ChannelError("unix:///run/x: no such file", ChannelProblem.NO_SUCH_VM), Reason.NOT_ENABLED),
        (ChannelError("unix:///run/x: permission denied", ChannelProblem.NOT_PERMITTED), Reason.NOT_PERMITTED),
        (ChannelError("unix:///run/x: refused", ChannelProblem.NO_LISTENER), Reason.READER_FAILED),
        (WireError("libvirt", "no connection driver available"), Reason.READER_FAILED),
    ],
)
async def test_failure_of_libvirt_has_its_reason(host: Path, error: Exception, absence: Reason) -> None:
    with pytest.raises(HolderError) as caught:
        await LibvirtHolders(FakeHypervisor(error=error), LocalFiles(host)).report()
    assert caught.value.absence is absence


async def test_hanging_libvirt_is_a_timeout(host: Path) -> None:
    source = LibvirtHolders(FakeHypervisor(seconds=60), LocalFiles(host), timeout_seconds=0.01)
    with pytest.raises(HolderError) as caught:
        await source.report()
    assert caught.value.absence is Reason.TIMEOUT


async def test_host_without_libvirt_is_not_enabled(host: Path) -> None:
    source = LibvirtHolders(LibvirtDomains(UnixDialer(host / "none"), "qemu:///system"), LocalFiles(host))
    with pytest.raises(HolderError) as caught:
        await source.report()
    assert caught.value.absence is Reason.NOT_ENABLED


@pytest.mark.system
async def test_domains_of_a_real_libvirt(host: Path) -> None:
    with Libvirt() as libvirt:
        xml = (
            f"<domain type='test'><name>ml_train-0</name><uuid>{UID}</uuid>{KUBEVIRT}<memory>1024</memory>"
            f"<os><type arch='x86_64'>hvm</type></os><devices>{pci(GPU)}{MDEV}</devices></domain>"
        )
        file = libvirt.put("node.xml", f"<node>{xml}</node>")
        domains = LibvirtDomains(UnixDialer(libvirt.socket), f"test://{file}")
        found = await LibvirtHolders(domains, LocalFiles(host), timeout_seconds=60.0).report()
    assert {(claim.holder.id, claim.holder.name, claim.share) for claim in found.claims} == {
        (UID, "train-0", Share.EXCLUSIVE),
        (UID, "train-0", Share.VGPU),
    }
    assert {owner.uid for claim in found.claims for owner in claim.holder.owners} == {VMI_UID}
