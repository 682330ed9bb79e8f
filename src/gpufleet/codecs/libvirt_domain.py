"""Parser of libvirt domain XML: channels into a domain, and its passed-through host devices. Pure.

Elements are those of https://libvirt.org/formatdomain.html. Users can write much of such a document
(above all the metadata): no entity is expanded, and size, depth and number of elements are bounded.
"""

import re
import uuid
from xml.parsers import expat

import msgspec

from gpufleet.codecs.xml_parser import make_xml_parser
from gpufleet.model.errors import WireError, WireLimitError
from gpufleet.model.view import normalise_pci_address, normalise_uuid

MAX_BYTES = 4 << 20
MAX_DEPTH, MAX_ELEMENTS = 64, 100_000
MAX_DEVICES = 256
"""Maximum number of host devices of one domain."""

_HEX = re.compile(r"(?:0[xX])?[0-9a-fA-F]{1,8}", re.ASCII)
_CID = re.compile(r"[0-9]{1,10}", re.ASCII)
_VMI_UID = ["domain", "metadata", "kubevirt", "uid"]
_HUGEPAGES = ["domain", "memoryBacking", "hugepages"]
_KUBEVIRT_NAME = re.compile(r"([a-z0-9-]{1,63})_([a-z0-9.-]{1,253})", re.ASCII)
_MAX_UID = 64
_FIRST_CID, _LAST_CID = 3, 0xFFFF_FFFE


class Domain(msgspec.Struct, frozen=True, kw_only=True):
    """Channels and devices of a domain.

    Attributes:
        cid: vsock address, or None without a vsock device.
        channels: name of a virtio-serial port to its Unix socket on this host.
        pci: addresses of its passed-through PCI functions, such as `0000:3b:00.0`.
        mdevs: UUIDs of its mediated devices (vGPU instances).
        vmi_uid: UID of its VirtualMachineInstance if KubeVirt created it, or empty.
        hugepages: whether its memory is of huge pages of the host.
    """

    cid: int | None = None
    channels: dict[str, str] = {}
    pci: tuple[str, ...] = ()
    mdevs: tuple[str, ...] = ()
    vmi_uid: str = ""
    hugepages: bool = False


def split_kubevirt_name(name: str) -> tuple[str, str] | None:
    """Return namespace and name of a VirtualMachineInstance from the name of its domain, or None for another form.

    KubeVirt joins them with an underscore, which neither of them can contain.
    """
    match = _KUBEVIRT_NAME.fullmatch(name)
    return None if match is None else (match[1], match[2])


def parse_domain(content: bytes) -> Domain:
    """Parse a domain document.

    Raises:
        WireLimitError: if it is too long, too deep, or has too many elements or devices.
        WireError: if it is not a domain document, or uses entities.
    """
    if len(content) > MAX_BYTES:
        raise WireLimitError("domain", f"{len(content)} bytes, more than {MAX_BYTES}")
    document = _DomainParser()
    try:
        document.parse(content)
    except expat.ExpatError as error:
        what = f"the XML is truncated or malformed at line {error.lineno}: {expat.ErrorString(error.code)}"
        raise WireError("domain", what) from error
    except (UnicodeError, LookupError) as error:  # an encoding that Python does not support
        raise WireError("domain", f"its encoding cannot be read: {error}") from error
    return Domain(
        cid=document.cid,
        channels=document.channels,
        pci=tuple(dict.fromkeys(document.pci)),
        mdevs=tuple(dict.fromkeys(document.mdevs)),
        vmi_uid=normalise_uuid(document.vmi_uid) or "",
        hugepages=document.hugepages,
    )


class _DomainParser:
    """State of one parse: current element path and current device."""

    def __init__(self) -> None:
        self.cid: int | None = None
        self.channels: dict[str, str] = {}
        self.pci: list[str] = []
        self.mdevs: list[str] = []
        self.vmi_uid = ""
        self.hugepages = False
        self._path: list[str] = []
        self._elements = 0
        self._type = ""  # of the device
        self._socket = ""

    def parse(self, content: bytes) -> None:
        """Parse a document; raises ExpatError and WireError."""
        parser = make_xml_parser("domain", "it declares or uses an entity, which libvirt never does")
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.Parse(content, True)

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        if not self._path and tag != "domain":
            raise WireError("domain", f"the root is <{tag[:40]}>, not <domain>")
        self._elements += 1
        if self._elements > MAX_ELEMENTS:
            raise WireLimitError("domain", f"more than {MAX_ELEMENTS} elements")
        if len(self._path) >= MAX_DEPTH:
            raise WireLimitError("domain", f"deeper than {MAX_DEPTH} elements")
        self._path.append(tag)
        if self._path == _HUGEPAGES:
            self.hugepages = True
        if self._path[1:2] != ["devices"] or len(self._path) < 3:
            return
        if len(self._path) == 3:
            self._type, self._socket = attributes.get("type", ""), ""
            return
        place = self._path[2:]
        if place == ["vsock", "cid"]:
            self._take_cid(attributes.get("address", ""))
        elif place == ["hostdev", "source", "address"]:
            self._take_device(attributes)
        elif place == ["channel", "source"] and self._type == "unix":
            self._socket = attributes.get("path", "")
        elif place == ["channel", "target"] and self._socket.startswith("/"):
            self.channels.setdefault(attributes.get("name", ""), self._socket)

    def _end(self, _: str) -> None:
        self._path.pop()

    def _text(self, text: str) -> None:
        if self._path == _VMI_UID and len(self.vmi_uid) < _MAX_UID:
            self.vmi_uid += text

    def _take_cid(self, address: str) -> None:
        if _CID.fullmatch(address) and _FIRST_CID <= int(address) <= _LAST_CID:
            self.cid = int(address)

    def _take_device(self, attributes: dict[str, str]) -> None:
        if len(self.pci) + len(self.mdevs) >= MAX_DEVICES:
            raise WireLimitError("domain", f"more than {MAX_DEVICES} devices of the host")
        if self._type == "pci":
            self.pci.append(_pci_address(attributes))
        elif self._type == "mdev":
            try:
                self.mdevs.append(str(uuid.UUID(attributes.get("uuid", ""))))
            except ValueError:
                raise WireError("domain", "a mediated device without a UUID") from None


def _pci_address(attributes: dict[str, str]) -> str:
    texts = [attributes.get(name, "0x0") for name in ("domain", "bus", "slot", "function")]
    if not all(_HEX.fullmatch(text) for text in texts):
        raise WireError("domain", "a PCI device without an address")
    domain, bus, slot, function = (int(text, 16) for text in texts)
    if domain > 0xFFFF_FFFF or bus > 0xFF or slot > 0x1F or function > 7:
        raise WireError("domain", "an impossible PCI address")
    return normalise_pci_address(f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}")
