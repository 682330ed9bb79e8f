"""Forms of the identifiers of machines and cloud instances, and defaults of firmware that many machines share."""

import re
import uuid

AWS, AZURE, GCP, OPENSTACK, ORACLE = "aws", "azure", "gcp", "openstack", "oracle_cloud"
"""Providers, by the values of OpenTelemetry's `cloud.provider`, which has none for OpenStack."""

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_MACHINE_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_INSTANCE_ID = {
    AWS: re.compile(r"i-(?:[0-9a-f]{8}|[0-9a-f]{17})", re.ASCII),
    AZURE: _UUID,
    GCP: re.compile(r"[1-9][0-9]{0,19}", re.ASCII),
    OPENSTACK: _UUID,
    ORACLE: re.compile(r"ocid1\.instance\.[A-Za-z0-9._-]{1,230}", re.ASCII),
}

PLACEHOLDER_UUIDS = frozenset(
    uuid.UUID(text)
    for text in (
        "03000200-0400-0500-0006-000700080009",  # American Megatrends' default
        "00112233-4455-6677-8899-aabbccddeeff",
        "01234567-89ab-cdef-0123-456789abcdef",
        "12345678-1234-5678-90ab-cddeefaabbcc",
        "12345678-1234-1234-1234-123456789abc",
        "4c4c4544-0000-2010-8020-80c04f202020",  # Dell's with no service tag set
    )
)
"""Default UUIDs of firmware, in either byte order; many machines share them."""


def is_uuid(text: str) -> bool:
    """Return whether a text is a UUID in canonical lower case."""
    return _UUID.fullmatch(text) is not None


def is_placeholder_uuid(value: uuid.UUID) -> bool:
    """Return whether a system UUID is all zeros, all ones, or a known default in either byte order."""
    return len(set(value.bytes)) == 1 or value in PLACEHOLDER_UUIDS or byte_swapped(value) in PLACEHOLDER_UUIDS


def byte_swapped(value: uuid.UUID) -> uuid.UUID:
    """Return the UUID with its first three fields in the other byte order."""
    return uuid.UUID(bytes_le=value.bytes)


def is_machine_id(text: str) -> bool:
    """Return whether a text is a machine id (machine-id(5)): 32 hexadecimal digits, not all zeros."""
    return _MACHINE_ID.fullmatch(text) is not None and set(text) != {"0"}


def is_instance_id(provider: str, text: str) -> bool:
    """Return whether a text has the form of the provider's instance ids. cloud-init invents ids if it has none."""
    pattern = _INSTANCE_ID.get(provider)
    return pattern is not None and pattern.fullmatch(text) is not None
