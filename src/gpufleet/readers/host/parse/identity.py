"""What a machine is known by: DMI, machine-id, os-release."""

import re
import uuid

from gpufleet.model.errors import WireError
from gpufleet.readers.host.parse.text import decode, line, shown

_MACHINE_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)

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
"""UUIDs that firmware ships with when nobody set one, in either byte order: many machines share them."""

PLACEHOLDER_TEXTS = frozenset(
    (
        "0", "00000000", "0123456789", "123456789", "1234567890", "chassis serial number", "default string", "empty",
        "invalid", "n/a", "na", "none", "not applicable", "not available", "not specified", "o.e.m.", "oem", "sernum0",
        "serial number", "system manufacturer", "system product name", "system serial number", "to be filled by o.e.m.",
        "unknown",
    )
)  # fmt: skip
"""What firmware says in DMI texts that nobody set, in lower case."""


def parse_system_uuid(content: bytes, where: str) -> str:
    """Read DMI's product UUID as canonical lower-case text.

    SMBIOS 2.6 laid down that the first three fields are little-endian, earlier versions did not say. The
    kernel prints them swapped for 2.6 and later and as they lie for earlier ones, exactly as dmidecode and
    the kubelet do, so its spelling is kept: swapping it again would tear one machine in two. What cannot be
    an identity is found in either byte order.

    Raises:
        WireError: if it is no UUID, all zeros, all ones, or a known placeholder.
    """
    text = decode(content).strip().lower()
    if _UUID.fullmatch(text) is None:
        raise WireError(where, f"{shown(text)[:40]!r} is not a UUID")
    value = uuid.UUID(text)
    if len(set(value.bytes)) == 1 or value in PLACEHOLDER_UUIDS or byte_swapped(value) in PLACEHOLDER_UUIDS:
        raise WireError(where, f"{text} is what firmware says when nobody set it")
    return text


def byte_swapped(value: uuid.UUID) -> uuid.UUID:
    """Return the UUID with its first three fields in the other byte order: itself, swapped twice."""
    return uuid.UUID(bytes_le=value.bytes)


def parse_machine_id(content: bytes, where: str) -> str:
    """Read machine-id(5): 32 hexadecimal digits.

    Raises:
        WireError: if it is empty, `uninitialized` or anything else, or all zeros.
    """
    text = decode(content).strip().lower()
    if _MACHINE_ID.fullmatch(text) is None or set(text) == {"0"}:
        raise WireError(where, f"{shown(text)[:40]!r} is not a machine id")
    return text


def parse_boot_id(content: bytes, where: str) -> str:
    """Read the kernel's random id of this boot.

    Raises:
        WireError: if it is no UUID.
    """
    text = decode(content).strip().lower()
    if _UUID.fullmatch(text) is None:
        raise WireError(where, f"{shown(text)[:40]!r} is not a UUID")
    return text


def parse_dmi_text(content: bytes, where: str) -> str:
    """Read a DMI text.

    Raises:
        WireError: if it is empty or what firmware says when nobody set it.
    """
    text = line(content, where)
    if text.lower() in PLACEHOLDER_TEXTS:
        raise WireError(where, f"{text!r} is what firmware says when nobody set it")
    return text


def parse_os_name(content: bytes, where: str) -> str:
    """Read PRETTY_NAME (else NAME) of os-release(5).

    Raises:
        WireError: if neither is there.
    """
    fields = dict(row.partition("=")[::2] for row in decode(content).splitlines() if not row.startswith("#"))
    for name in ("PRETTY_NAME", "NAME"):
        text = shown(_unquoted(fields.get(name, "")))
        if text:
            return text
    raise WireError(where, "names no system")


def _unquoted(text: str) -> str:
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'":
        text = text[1:-1]
    return re.sub(r'\\(["\'$`\\])', r"\1", text)
