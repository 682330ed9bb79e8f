"""Parsers of a cloud instance's attributes from DMI texts, cloud-init's instance data and metadata services. Pure.

The provider is identified by DMI only. cloud-init writes its instance data at each boot from the provider's metadata.
Its data and those of a metadata service count only if DMI names the same provider and no other instance.
"""

import re
import uuid
from typing import Any

import msgspec

from gpufleet.fleet.machine_ids import AWS, AZURE, GCP, OPENSTACK, ORACLE, byte_swapped, is_instance_id
from gpufleet.model.errors import WireError
from gpufleet.readers.host.parse.text import printable

PLATFORMS = {
    AWS: ("aws", "ec2"),
    AZURE: ("azure",),
    GCP: ("gce",),
    OPENSTACK: ("openstack", "configdrive"),
    ORACLE: ("oracle",),
}
"""Provider to the values of cloud-init's `cloud_name`."""

AZURE_CHASSIS = "7783-7084-3265-9085-8269-3286-77"
"""Asset tag of the chassis of each Azure machine; other Hyper-V machines have the same vendor and product."""

ORACLE_CHASSIS = "OracleCloud.com"

MAX_TEXT_LENGTH = 250
"""Maximum length of an id, type, region or zone. A longer one is left out, because a part of it would be wrong."""

_AWS_TYPE = re.compile(r"[a-z][a-z0-9-]{1,30}\.[a-z0-9-]{1,30}", re.ASCII)
_UUID_PROVIDERS = (AZURE, OPENSTACK)
"""Providers whose instance id is the system UUID. Azure's first generation has the other byte order."""

_REDACTED = "redacted for non-root user"

_ID = ("v1.instance_id", "v1.instance-id")
_TYPE = (
    *("ds.meta_data.instance_type", "ds.meta_data.instance-type"),  # AWS
    *("ds.ec2_metadata.instance_type", "ds.ec2_metadata.instance-type"),  # OpenStack
    "ds.shape",  # Oracle
)
"""Paths in instance data. Old versions of cloud-init write underscores in names."""


class DmiTexts(msgspec.Struct, frozen=True, kw_only=True):
    """DMI texts that identify a provider; empty if unknown.

    Attributes:
        vendor, product: of the system.
        bios: version of the firmware.
        board_tag, chassis_tag: asset tags.
    """

    vendor: str = ""
    product: str = ""
    bios: str = ""
    board_tag: str = ""
    chassis_tag: str = ""


class InstanceData(msgspec.Struct, frozen=True, kw_only=True):
    """Instance as cloud-init reports it. Unknown texts are empty.

    Attributes:
        platform: cloud-init's `cloud_name`.
        id: instance id, not validated.
        type: instance type.
        region, zone: location.
    """

    platform: str
    id: str = ""
    type: str = ""
    region: str = ""
    zone: str = ""


def detect_provider(dmi: DmiTexts) -> str:
    """Return the provider that DMI names, or empty."""
    if dmi.vendor == "Amazon EC2" or dmi.bios.endswith(".amazon"):  # with Xen, the vendor is Xen
        return AWS
    if dmi.product in ("Google Compute Engine", "Google"):
        return GCP
    if dmi.chassis_tag == AZURE_CHASSIS:
        return AZURE
    if dmi.chassis_tag == ORACLE_CHASSIS:
        return ORACLE
    if dmi.vendor == "OpenStack Foundation" or dmi.product in ("OpenStack Nova", "OpenStack Compute"):
        return OPENSTACK
    return ""


def dmi_instance_id(provider: str, dmi: DmiTexts) -> str:
    """Return the instance id in DMI, or empty. Only AWS has one there, on Nitro machines."""
    return dmi.board_tag if provider == AWS and is_instance_id(AWS, dmi.board_tag) else ""


def dmi_instance_type(provider: str, dmi: DmiTexts) -> str:
    """Return the instance type in DMI, or empty. Only AWS has one there, on Nitro machines."""
    return dmi.product if provider == AWS and _AWS_TYPE.fullmatch(dmi.product) else ""


def is_same_instance(provider: str, instance_id: str, dmi_id: str, system_uuid: str) -> bool:
    """Return whether DMI does not contradict an instance id.

    Args:
        provider: of the instance.
        instance_id: by cloud-init.
        dmi_id: instance id in DMI, or empty.
        system_uuid: of the machine, or empty.
    """
    if dmi_id:
        return instance_id == dmi_id
    if provider in _UUID_PROVIDERS and system_uuid:
        return instance_id in (system_uuid, str(byte_swapped(uuid.UUID(system_uuid))))
    return True


def parse_instance_data(content: bytes, where: str) -> InstanceData:
    """Parse cloud-init's `instance-data.json`.

    Raises:
        WireError: if it is not a JSON object with `v1`.
    """
    try:
        document = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise WireError(where, printable(f"not JSON: {error}")) from None
    if not isinstance(_at(document, "v1"), dict):
        raise WireError(where, "has no object `v1`")
    platform = _first(document, "v1.cloud_name", "v1.cloud-name")
    imds = "ds.meta_data.imds.compute"
    if platform == "azure":
        # cloud-init's own zone is a fault domain there, and its instance id can have the other byte order.
        return InstanceData(
            platform=platform,
            id=_first(document, f"{imds}.vmId", *_ID).lower(),
            type=_first(document, f"{imds}.vmSize"),
            region=_first(document, "v1.region", f"{imds}.location"),
            zone=_first(document, f"{imds}.zone"),
        )
    return InstanceData(
        platform=platform,
        id=_first(document, *_ID),
        type=_first(document, *_TYPE),
        region=_first(document, "v1.region", "ds.canonicalRegionName"),
        zone=_first(document, "v1.availability_zone", "v1.availability-zone"),
    )


def parse_identity_document(content: bytes, where: str) -> InstanceData:
    """Parse the instance identity document of AWS' metadata service.

    Raises:
        WireError: if it is not a JSON object.
    """
    try:
        document = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise WireError(where, printable(f"not JSON: {error}")) from None
    if not isinstance(document, dict):
        raise WireError(where, "not a JSON object")
    return InstanceData(
        platform="aws",
        id=_first(document, "instanceId"),
        type=_first(document, "instanceType"),
        region=_first(document, "region"),
        zone=_first(document, "availabilityZone"),
    )


def parse_metadata_text(content: str) -> str:
    """Return a text of a metadata service; empty if it is too long or not printable."""
    text = content.strip()
    return text if text.isprintable() and len(text) <= MAX_TEXT_LENGTH else ""


def _first(document: Any, *paths: str) -> str:
    """Return the first known text at these paths, or empty."""
    for path in paths:
        value = _at(document, *path.split("."))
        text = printable(value) if isinstance(value, str) else ""
        if 0 < len(text) <= MAX_TEXT_LENGTH and text != _REDACTED:
            return text
    return ""


def _at(document: Any, *names: str) -> Any:
    for name in names:
        document = document.get(name) if isinstance(document, dict) else None
    return document
