"""Parser of /dev/kmsg lines, and of the driver's messages in them. Pure.

Format of a line: `priority,sequence,microseconds,flags[,more];text`. Lines that begin with a space are the dictionary
of the preceding record (Documentation/ABI/testing/dev-kmsg).
"""

import re
from typing import NamedTuple

MAX_TEXT = 1024
"""Maximum characters of a message; the rest is ignored."""

KERNEL = 0
"""Facility of the kernel's own messages. Messages that a process writes to the log have another one."""

_ANY = re.DOTALL | re.ASCII
_HEAD = re.compile(rb"(\d{1,9}),(\d{1,19}),(\d{1,19}),[^;]{0,256};")

_PCI = r"([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
_XID = re.compile(
    rf"NVRM: Xid \((?:PCI:)?{_PCI}(?: GPU-I:(\d{{1,3}}))?(?: GPU-CI:(\d{{1,3}}))?\): (\d{{1,6}})(?:,\s*(.*))?$", _ANY
)
_PROCESS = re.compile(
    r"(?:pid=(?P<pid>\d{1,10}|'?<unknown>'?),?\s*)?(?:name=.{0,15}?,\s+(?=[A-Z0-9])|name=[^,]*(?:,\s*)?)?", _ANY
)
"""Process id and name, each optional. A name can contain commas and spaces, and has at most 15 characters
(TASK_COMM_LEN). The message after the name begins with a capital letter or a digit.
"""

_SXID = re.compile(
    rf"nvidia-(nvswitch\d{{1,3}}): SXid \(PCI:{_PCI}\): (\d{{1,6}}), (Fatal|Non-fatal|Non-Fatal)(?:,\s*(.*))?$", _ANY
)
_LINK = re.compile(r"\bLink (\d{1,3})\b", re.ASCII)
_RECOVERY = re.compile(r"recovery action changed from 0x[0-9a-fA-F]+ \([^)]*\) to 0x[0-9a-fA-F]+ \(([^)]{1,64})\)")
_UUID = re.compile(rf"NVRM: GPU at (?:PCI:)?{_PCI}: (GPU-[0-9a-fA-F-]{{36}})")
_OFF_THE_BUS = re.compile(rf"NVRM: GPU (?:at )?(?:PCI:)?{_PCI}(?:: GPU)? has fallen off the bus")
_OFF_THE_BUS_START = re.compile(rf"NVRM: The NVIDIA GPU {_PCI}")
_OFF_THE_BUS_END = re.compile(r"NVRM: fallen off the bus and is not responding")
_INIT_FAILED = re.compile(rf"NVRM: GPU {_PCI}: (RmInitAdapter failed!.*|rm_init_adapter failed.*)", _ANY)
_MISMATCH = re.compile(r"NVRM: (API mismatch: .*)", _ANY)
_LOADED = re.compile(
    r"NVRM: loading NVIDIA UNIX (?:x86_64 |aarch64 )?(?:Open )?Kernel Module (?:for \w+ )?\s*([\d.]{1,32})", re.ASCII
)
_VGPU = re.compile(r"\[nvidia-vgpu-vfio\] ([0-9a-fA-F-]{36}): (.*)", _ANY)
_FAILS = re.compile(r"fail|error", re.IGNORECASE)


class KmsgRecord(NamedTuple):
    """Record of the log.

    Attributes:
        facility: 0 for the kernel itself.
        seq: its number since boot; consecutive.
        microseconds: since boot, by the clock of the kernel's timestamps.
        text: with the kernel's escapes (`\\x0a`), at most `MAX_TEXT` characters.
    """

    facility: int
    seq: int
    microseconds: int
    text: str


class DriverMessage(NamedTuple):
    """Message of the driver.

    Attributes:
        kind: of `model.event`.
        pci: address of the GPU as in the log, or None if the message is not about a GPU.
        code: XID or SXID, else 0.
        attributes: further details, without process names.
    """

    kind: str
    pci: str | None
    code: int
    attributes: dict[str, str]


class UuidMessage(NamedTuple):
    """Message of the driver that contains the UUID of the GPU at an address."""

    pci: str
    uuid: str


def parse_line(line: bytes) -> KmsgRecord | None:
    """Parse a line; None if it is not a record (a dictionary line, or not in the log's format)."""
    head = _HEAD.match(line)
    if head is None:
        return None
    text = line[head.end() : head.end() + 4 * MAX_TEXT].decode("utf-8", "replace")[:MAX_TEXT]
    return KmsgRecord(int(head[1]) >> 3, int(head[2]), int(head[3]), text)


class MessageParser:
    """Parser of the driver's messages, record by record. Keeps state for messages that span several records."""

    def __init__(self) -> None:
        self._off_the_bus: str | None = None

    def parse(self, text: str) -> DriverMessage | UuidMessage | None:
        """Parse a message; None if it contains neither an event nor a UUID."""
        if "NVRM" not in text and "nvidia-" not in text:
            return None
        for parse in (_xid, _sxid, _uuid, _init_failed, _mismatch, _loaded, _vgpu):
            found = parse(text)
            if found is not None:
                return found
        return self._parse_lost(text)

    def _parse_lost(self, text: str) -> DriverMessage | None:
        found = _OFF_THE_BUS.match(text)
        if found is not None:
            return DriverMessage("gpu_lost", found[1], 0, {"message": text})
        start = _OFF_THE_BUS_START.match(text)
        if start is not None:
            self._off_the_bus = start[1]
            if "fallen off the bus" not in text:
                return None
        elif _OFF_THE_BUS_END.match(text) is None:
            return None
        pci, self._off_the_bus = self._off_the_bus, None
        return None if pci is None else DriverMessage("gpu_lost", pci, 0, {"message": text})


def _xid(text: str) -> DriverMessage | None:
    found = _XID.match(text)
    if found is None:
        return None
    pci, gpu_instance, compute_instance, code, rest = found.groups()
    process = _PROCESS.match(rest or "")
    assert process is not None  # every part of the pattern is optional
    message = (rest or "")[process.end() :].strip()
    pid = process["pid"] or ""
    recovery = _RECOVERY.search(message)
    attributes = {
        "message": message,
        "pid": pid if pid.isdecimal() else "",
        "gpu_instance": _instance_id(gpu_instance),
        "compute_instance": _instance_id(compute_instance),
        "recovery": recovery[1] if recovery else "",
    }
    return DriverMessage("xid", pci, int(code), {name: value for name, value in attributes.items() if value})


def _instance_id(number: str | None) -> str:
    """Return an instance id without the log's zero padding."""
    return str(int(number)) if number else ""


def _sxid(text: str) -> DriverMessage | None:
    found = _SXID.match(text)
    if found is None:
        return None
    switch, pci, code, severity, rest = found.groups()
    link = _LINK.search(rest or "")
    attributes = {
        "pci_address": pci.lower(),
        "switch": switch,
        "severity": severity.lower(),
        "link": link[1] if link else "",
        "message": (rest or "").strip(),
    }
    return DriverMessage("sxid", None, int(code), {name: value for name, value in attributes.items() if value})


def _uuid(text: str) -> UuidMessage | None:
    found = _UUID.match(text)
    return UuidMessage(found[1], found[2]) if found else None


def _init_failed(text: str) -> DriverMessage | None:
    found = _INIT_FAILED.match(text)
    return DriverMessage("gpu_init_failed", found[1], 0, {"message": found[2]}) if found else None


def _mismatch(text: str) -> DriverMessage | None:
    found = _MISMATCH.match(text)
    return DriverMessage("driver_mismatch", None, 0, {"message": found[1]}) if found else None


def _loaded(text: str) -> DriverMessage | None:
    found = _LOADED.match(text)
    return DriverMessage("driver_loaded", None, 0, {"version": found[1]}) if found else None


def _vgpu(text: str) -> DriverMessage | None:
    found = _VGPU.match(text)
    if found is None or _FAILS.search(found[2]) is None:
        return None
    return DriverMessage("vgpu_failed", None, 0, {"instance": found[1].lower(), "message": found[2]})
