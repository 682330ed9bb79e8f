"""ResourceSlices and ResourceClaims (DRA), API version resource.k8s.io/v1."""

import msgspec

from gpufleet.fleet.gpu_resources import is_gpu_driver
from gpufleet.holders.kubernetes.parse.fields import MAX_VALUE, ObjectMetadata, instant, required, text
from gpufleet.model.kubernetes import (
    MAX_DEVICES,
    MAX_REFERENCES,
    AllocatedDevice,
    ClaimUser,
    ClusterClaim,
    ClusterDevice,
    ClusterSlice,
)
from gpufleet.model.text import bounded
from gpufleet.model.view import normalise_pci_address

DEVICE_ATTRIBUTES = frozenset(
    {
        *("productName", "brand", "architecture", "cudaComputeCapability", "driverVersion", "cudaDriverVersion"),
        *("index", "minor", "profile", "parentIndex", "parentMinor", "placementStart", "placementSize", "mdevUUID"),
        *("pcieRoot", "numaNode", "addressingMode"),
    }
)
"""Attributes of devices that are collected, without their domain."""

_PCI_NAMES = ("pciBusID", "pcieBusID", "pciAddress")


class _Attribute(msgspec.Struct):
    string: str | None = None
    version: str | None = None
    number: int | None = msgspec.field(name="int", default=None)
    flag: bool | None = msgspec.field(name="bool", default=None)

    @property
    def as_text(self) -> str:
        """Return the value as text; empty for a type that this build does not know."""
        for value in (self.string, self.version, self.number):
            if value is not None:
                return bounded(str(value), MAX_VALUE)
        return "" if self.flag is None else str(self.flag).lower()


class _SliceDevice(msgspec.Struct):
    name: str
    attributes: dict[str, _Attribute] | None = None
    node: str | None = msgspec.field(name="nodeName", default=None)


class _Pool(msgspec.Struct):
    name: str
    generation: int = 0
    slices: int = msgspec.field(name="resourceSliceCount", default=0)


class _SliceSpec(msgspec.Struct):
    driver: str
    pool: _Pool
    node: str | None = msgspec.field(name="nodeName", default=None)
    devices: list[_SliceDevice] | None = None


class _Slice(msgspec.Struct):
    metadata: ObjectMetadata
    spec: _SliceSpec


class _Result(msgspec.Struct):
    driver: str
    pool: str
    device: str
    request: str = ""
    admin: bool | None = msgspec.field(name="adminAccess", default=None)


class _Results(msgspec.Struct):
    results: list[_Result] | None = None


class _ClaimAllocation(msgspec.Struct):
    devices: _Results | None = None


class _Consumer(msgspec.Struct):
    resource: str
    name: str
    uid: str


class _ClaimStatus(msgspec.Struct):
    allocation: _ClaimAllocation | None = None
    reserved: list[_Consumer] | None = msgspec.field(name="reservedFor", default=None)


class _ResourceClaim(msgspec.Struct):
    metadata: ObjectMetadata
    status: _ClaimStatus | None = None


_SLICES = msgspec.json.Decoder(_Slice)
_CLAIMS = msgspec.json.Decoder(_ResourceClaim)


def parse_slice(data: bytes | msgspec.Raw) -> ClusterSlice | None:
    """Decode a ResourceSlice; return None if its driver is not of GPUs.

    Raises:
        msgspec.DecodeError: if a field has another type than the API's.
        WireError: if it has no UID, name, driver or pool.
    """
    found = _SLICES.decode(data)
    spec = found.spec
    if not is_gpu_driver(spec.driver):
        return None
    driver, pool = required(spec.driver, "spec.driver"), required(spec.pool.name, "spec.pool.name")
    return ClusterSlice(
        uid=required(found.metadata.uid, "metadata.uid"),
        name=required(found.metadata.name, "metadata.name"),
        driver=driver,
        pool=pool,
        generation=spec.pool.generation,
        slices=spec.pool.slices,
        node=text(spec.node),
        devices=tuple(_device(device, driver, pool, spec) for device in (spec.devices or [])[:MAX_DEVICES]),
    )


def _device(device: _SliceDevice, driver: str, pool: str, spec: _SliceSpec) -> ClusterDevice:
    values = {name.rpartition("/")[2]: attribute.as_text for name, attribute in (device.attributes or {}).items()}
    return ClusterDevice(
        driver=driver,
        pool=pool,
        name=required(device.name, "spec.devices.name"),
        generation=spec.pool.generation,
        node=text(device.node or spec.node),
        uuid=values.get("uuid", ""),
        pci_address=_pci_address(next((values[name] for name in _PCI_NAMES if values.get(name)), "")),
        kind=values.get("type", ""),
        parent_uuid=values.get("parentUUID", ""),
        attributes={name: values[name] for name in sorted(DEVICE_ATTRIBUTES & set(values)) if values[name]},
    )


def _pci_address(address: str) -> str:
    """Return a PCI address as sysfs writes it; empty if it is not valid."""
    try:
        return normalise_pci_address(address) if address else ""
    except ValueError:
        return ""


def parse_claim(data: bytes | msgspec.Raw) -> ClusterClaim | None:
    """Decode a ResourceClaim; return None if no GPU is allocated to it.

    Raises:
        msgspec.DecodeError: if a field has another type than the API's.
        WireError: if it has no UID, name or namespace.
    """
    claim = _CLAIMS.decode(data)
    status = claim.status or _ClaimStatus()
    allocation = status.allocation or _ClaimAllocation()
    results = (allocation.devices or _Results()).results or []
    devices = tuple(
        AllocatedDevice(
            driver=text(result.driver),
            pool=text(result.pool),
            name=text(result.device),
            request=text(result.request),
            admin_access=bool(result.admin),
        )
        for result in results[:MAX_DEVICES]
        if is_gpu_driver(result.driver)
    )
    if not devices:
        return None
    return ClusterClaim(
        uid=required(claim.metadata.uid, "metadata.uid"),
        namespace=required(claim.metadata.namespace, "metadata.namespace"),
        name=required(claim.metadata.name, "metadata.name"),
        devices=devices,
        reserved_for=tuple(
            ClaimUser(resource=text(user.resource), name=text(user.name), uid=text(user.uid))
            for user in (status.reserved or [])[:MAX_REFERENCES]
        ),
        created=instant(claim.metadata.created),
    )
