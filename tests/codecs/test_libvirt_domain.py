"""Domain XML of libvirt: access paths and devices, other content ignored, hostile documents bounded."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.codecs import libvirt_domain as codec
from gpufleet.codecs.libvirt_domain import Domain, parse_domain, split_kubevirt_name
from gpufleet.model.errors import WireError, WireLimitError

FULL = b"""<domain type='kvm' id='3'>
  <name>train-0</name>
  <metadata><x:a xmlns:x="urn:x"><devices><vsock><cid address='99'/></vsock></devices></x:a></metadata>
  <devices>
    <hostdev mode='subsystem' type='pci' managed='yes'>
      <driver name='vfio'/>
      <source><address domain='0x0000' bus='0x3b' slot='0x00' function='0x0'/></source>
      <address type='pci' domain='0x0000' bus='0x06' slot='0x00' function='0x0'/>
    </hostdev>
    <hostdev mode='subsystem' type='mdev' managed='no' model='vfio-pci' display='off'>
      <source><address uuid='C2177883-f1bb-47f0-914d-32a22e3a8804'/></source>
      <address type='pci' domain='0x0000' bus='0x07' slot='0x00' function='0x0'/>
    </hostdev>
    <hostdev mode='subsystem' type='usb'><source><address bus='1' device='2'/></source></hostdev>
    <interface type='hostdev'>
      <source><address type='pci' domain='0' bus='0x5e' slot='0' function='1'/></source>
    </interface>
    <channel type='unix'>
      <source mode='bind' path='/run/libvirt/qemu/channel/3-train-0/org.qemu.guest_agent.0'/>
      <target type='virtio' name='org.qemu.guest_agent.0' state='connected'/>
    </channel>
    <channel type='unix'>
      <source mode='bind' path='/run/x.sock'/><target type='virtio' name='org.gpufleet.guest_agent.0'/>
    </channel>
    <channel type='spicevmc'><target type='virtio' name='com.redhat.spice.0'/></channel>
    <vsock model='virtio'><cid auto='yes' address='42'/></vsock>
  </devices>
</domain>"""


def test_access_paths_and_devices_are_read() -> None:
    assert parse_domain(FULL) == Domain(
        cid=42,
        channels={
            "org.qemu.guest_agent.0": "/run/libvirt/qemu/channel/3-train-0/org.qemu.guest_agent.0",
            "org.gpufleet.guest_agent.0": "/run/x.sock",
        },
        pci=("0000:3b:00.0",),
        mdevs=("c2177883-f1bb-47f0-914d-32a22e3a8804",),
    )


@pytest.mark.parametrize(
    ("content", "hugepages"),
    [
        ("<memoryBacking><hugepages/></memoryBacking>", True),
        ("<memoryBacking><hugepages><page size='1' unit='G'/></hugepages></memoryBacking>", True),
        ("<memoryBacking><locked/></memoryBacking>", False),
        ("<metadata><memoryBacking><hugepages/></memoryBacking></metadata>", False),
    ],
)
def test_huge_pages_of_the_memory_are_read(content: str, hugepages: bool) -> None:
    assert parse_domain(f"<domain type='kvm'>{content}</domain>".encode()).hugepages is hugepages


def test_empty_domain() -> None:
    assert parse_domain(b"<domain type='test'><name>vm</name></domain>") == Domain()


@pytest.mark.parametrize("address", ["0", "1", "2", "4294967295", "-3", "x", "", "1" * 30])
def test_reserved_vsock_addresses_are_ignored(address: str) -> None:
    text = f"<domain><devices><vsock><cid address='{address}'/></vsock></devices></domain>"
    assert parse_domain(text.encode()).cid is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "line 1:"),
        (FULL[:-20], "line 27:"),
        (b"<network/>", "the root is <network>"),
        (b"<!DOCTYPE domain [<!ENTITY a 'b'>]><domain>&a;</domain>", "entity"),
        (b"<!DOCTYPE domain SYSTEM 'file:///etc/passwd' [<!ENTITY x SYSTEM 'file:///etc/passwd'>]><domain/>", "entity"),
        (b"<?xml version='1.0' encoding='no-such'?><domain/>", "encoding"),
        (FULL.replace(b"bus='0x3b'", b"bus='0x3bb'"), "impossible PCI address"),
        (FULL.replace(b"bus='0x3b'", b"bus='x'"), "without an address"),
        (FULL.replace(b"C2177883", b"x"), "without a UUID"),
    ],
)
def test_invalid_domain_is_rejected(text: bytes, message: str) -> None:
    with pytest.raises(WireError, match=message):
        parse_domain(text)


def test_size_depth_and_numbers_are_bounded() -> None:
    device = b"<hostdev type='pci'><source><address bus='0x%02x' slot='0x%02x'/></source></hostdev>"
    many = b"".join(device % (n % 256, n // 256) for n in range(codec.MAX_DEVICES + 1))
    for text in (
        b"<domain>" + b" " * codec.MAX_BYTES + b"</domain>",
        b"<domain>" + b"<a>" * codec.MAX_DEPTH,
        b"<domain>" + b"<a/>" * codec.MAX_ELEMENTS,
        b"<domain><devices>" + many + b"</devices></domain>",
    ):
        with pytest.raises(WireLimitError):
            parse_domain(text)


@given(st.data())
def test_any_bytes_raise_at_most_a_wire_error(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(FULL)))
    content = FULL[:at] + data.draw(st.binary(max_size=40)) + FULL[at + data.draw(st.integers(0, 40)) :]
    found = Domain()
    with contextlib.suppress(WireError):
        found = parse_domain(content)
    assert len(found.pci) + len(found.mdevs) <= codec.MAX_DEVICES
    assert found.cid is None or found.cid > 2


def test_instance_of_kubevirt_is_in_the_metadata() -> None:
    uid = "b9a53f4c-6c2f-4b2f-8c1a-0f1e2d3c4b5a"
    text = '<domain><metadata><kubevirt xmlns="http://kubevirt.io"><uid>{}</uid></kubevirt></metadata></domain>'
    assert parse_domain(text.format(uid).encode()).vmi_uid == uid
    for other in ("", "x" * 100_000, f"{uid}</uid><uid>{uid}"):
        assert parse_domain(text.format(other).encode()).vmi_uid == ""


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("ml_train-0", ("ml", "train-0")),
        ("ml_a.b", ("ml", "a.b")),
        ("train-0", None),
        ("a_b_c", None),
        ("_a", None),
        ("sandbox-0123", None),
    ],
)
def test_kubevirt_name_has_two_parts(name: str, parts: tuple[str, str] | None) -> None:
    assert split_kubevirt_name(name) == parts
