"""Fields of a VirtualMachineInstance that only its node needs. Pure."""

import ipaddress

import msgspec

from gpufleet.model.kubernetes import ClusterVmi

_OS_ANNOTATION, _OS_LABEL = "vm.kubevirt.io/os", "os.template.kubevirt.io/"
_WINDOWS = "mswindows"
"""Id of Windows that the guest agent reports."""


class NodeVmi(msgspec.Struct, frozen=True, kw_only=True):
    """A VirtualMachineInstance as its node needs it.

    Attributes:
        vmi: the object.
        address: IP address of its first interface, or empty. A guest agent can change it.
        is_windows: whether its template or its guest agent names Windows.
        hugepages: whether its memory is of huge pages of its node.
    """

    vmi: ClusterVmi
    address: str = ""
    is_windows: bool = False
    hugepages: bool = False


class _Metadata(msgspec.Struct):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _VmiInterface(msgspec.Struct):
    address: str | None = msgspec.field(name="ipAddress", default=None)


class _ReportedSystem(msgspec.Struct):
    id: str | None = None


class _NodeVmiStatus(msgspec.Struct):
    interfaces: list[_VmiInterface] | None = None
    guest_os: _ReportedSystem | None = msgspec.field(name="guestOSInfo", default=None)


class _Hugepages(msgspec.Struct):
    page_size: str | None = msgspec.field(name="pageSize", default=None)


class _Memory(msgspec.Struct):
    hugepages: _Hugepages | None = None


class _VmiMachine(msgspec.Struct):
    memory: _Memory | None = None


class _NodeVmiSpec(msgspec.Struct):
    domain: _VmiMachine | None = None


class _VmiFields(msgspec.Struct):
    metadata: _Metadata
    spec: _NodeVmiSpec | None = None
    status: _NodeVmiStatus | None = None


_FIELDS = msgspec.json.Decoder(_VmiFields)


def complete_vmi(data: bytes | msgspec.Raw, vmi: ClusterVmi) -> NodeVmi:
    """Return the record of an object with its address and operating system.

    Args:
        data: the object as JSON.
        vmi: the record of its other fields.

    Raises:
        msgspec.DecodeError: if a field has another type than the API's.
    """
    fields = _FIELDS.decode(data)
    status = fields.status or _NodeVmiStatus()
    first = next(iter(status.interfaces or ()), _VmiInterface())
    domain = fields.spec.domain if fields.spec is not None else None
    hugepages = domain.memory.hugepages if domain is not None and domain.memory is not None else None
    return NodeVmi(
        vmi=vmi,
        address=_address(first.address or ""),
        is_windows=_is_windows(fields.metadata, status),
        hugepages=hugepages is not None and bool(hugepages.page_size),
    )


def _address(text: str) -> str:
    """Return the only form of an address, by which conflicts are found; empty for an address with a scope."""
    try:
        address = ipaddress.ip_address(text[:64])
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return "" if address.scope_id is not None else str(address.ipv4_mapped or address)


def _is_windows(metadata: _Metadata, status: _NodeVmiStatus) -> bool:
    if status.guest_os is not None and status.guest_os.id == _WINDOWS:
        return True
    templates = [name.removeprefix(_OS_LABEL) for name in metadata.labels or () if name.startswith(_OS_LABEL)]
    return any(name.startswith("win") for name in [*templates, (metadata.annotations or {}).get(_OS_ANNOTATION, "")])
