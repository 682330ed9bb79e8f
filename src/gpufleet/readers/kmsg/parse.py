"""Lines of /dev/kmsg to records, and records to what the driver says. Pure.

Format of a line: `priority,sequence,microseconds,flags[,more];text`; lines that begin with a space carry the
dictionary of the record before (Documentation/ABI/testing/dev-kmsg).
"""

import re
from typing import NamedTuple

MAX_TEXT = 1024
"""Letters of a message that are looked at."""

KERNEL = 0
"""Facility of the kernel's own messages. What a process writes to the log gets another one."""

_ANY = re.DOTALL | re.ASCII
_HEAD = re.compile(rb"(\d{1,9}),(\d{1,19}),(\d{1,19}),[^;]{0,256};")

_PCI = r"([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
_XID = re.compile(
    rf"NVRM: Xid \((?:PCI:)?{_PCI}(?: GPU-I:(\d{{1,3}}))?(?: GPU-CI:(\d{{1,3}}))?\): (\d{{1,6}})(?:,\s*(.*))?$", _ANY
)
_WHO = re.compile(
    r"(?:pid=(?P<pid>\d{1,10}|'?<unknown>'?),?\s*)?(?:name=.{0,15}?,\s+(?=[A-Z0-9])|name=[^,]*(?:,\s*)?)?", _ANY
)
"""A name can hold commas and blanks, and has 15 letters at most (TASK_COMM_LEN): what follows it begins otherwise."""

_SXID = re.compile(
    rf"nvidia-(nvswitch\d{{1,3}}): SXid \(PCI:{_PCI}\): (\d{{1,6}}), (Fatal|Non-fatal|Non-Fatal)(?:,\s*(.*))?$", _ANY
)
_LINK = re.compile(r"\bLink (\d{1,3})\b", re.ASCII)
_RECOVERY = re.compile(r"recovery action changed from 0x[0-9a-fA-F]+ \([^)]*\) to 0x[0-9a-fA-F]+ \(([^)]{1,64})\)")
_UUID = re.compile(rf"NVRM: GPU at (?:PCI:)?{_PCI}: (GPU-[0-9a-fA-F-]{{36}})")
_OFF_THE_BUS = re.compile(rf"NVRM: GPU (?:at )?(?:PCI:)?{_PCI}: GPU has fallen off the bus")
_OFF_THE_BUS_BEGINS = re.compile(rf"NVRM: The NVIDIA GPU {_PCI}")
_OFF_THE_BUS_ENDS = re.compile(r"NVRM: fallen off the bus and is not responding")
_INIT_FAILED = re.compile(rf"NVRM: GPU {_PCI}: (RmInitAdapter failed!.*|rm_init_adapter failed.*)", _ANY)
_MISMATCH = re.compile(r"NVRM: (API mismatch: .*)", _ANY)
_LOADED = re.compile(
    r"NVRM: loading NVIDIA UNIX (?:x86_64 |aarch64 )?(?:Open )?Kernel Module (?:for \w+ )?\s*([\d.]{1,32})", re.ASCII
)
_VGPU = re.compile(r"\[nvidia-vgpu-vfio\] ([0-9a-fA-F-]{36}): (.*)", _ANY)
_FAILS = re.compile(r"fail|error", re.IGNORECASE)


class Record(NamedTuple):
    """One record of the log.

    Attributes:
        facility: 0 for the kernel itself.
        seq: its number since boot; each record has one more than the record before.
        microseconds: since boot, by the clock that the kernel stamps its messages with.
        text: with the kernel's escapes (`\\x0a`), at most `MAX_TEXT` letters.
    """

    facility: int
    seq: int
    microseconds: int
    text: str


class Told(NamedTuple):
    """What the driver said.

    Attributes:
        kind: of `model.event`.
        pci: address of the GPU as it was written, or None where it is about none.
        code: XID or SXID, else 0.
        attributes: more of it, without the names of processes.
    """

    kind: str
    pci: str | None
    code: int
    attributes: dict[str, str]


class Named(NamedTuple):
    """The driver told which UUID the GPU at an address has."""

    pci: str
    uuid: str


def parse_line(line: bytes) -> Record | None:
    """Return the record that a line is, or None if it is none (a dictionary's line, or not the log's format)."""
    head = _HEAD.match(line)
    if head is None:
        return None
    text = line[head.end() : head.end() + 4 * MAX_TEXT].decode("utf-8", "replace")[:MAX_TEXT]
    return Record(int(head[1]) >> 3, int(head[2]), int(head[3]), text)


class Sayings:
    """What the driver says, record by record. Some of it takes several records, so this remembers a little."""

    def __init__(self) -> None:
        self._off_the_bus: str | None = None

    def parse(self, text: str) -> Told | Named | None:
        """Return what the message tells, or None if it is not one of those worth an event."""
        if "NVRM" not in text and "nvidia-" not in text:
            return None
        for parse in (_xid, _sxid, _uuid, _init_failed, _mismatch, _loaded, _vgpu):
            found = parse(text)
            if found is not None:
                return found
        return self._lost(text)

    def _lost(self, text: str) -> Told | None:
        found = _OFF_THE_BUS.match(text)
        if found is not None:
            return Told("gpu_lost", found[1], 0, {"message": text})
        begins = _OFF_THE_BUS_BEGINS.match(text)
        if begins is not None:
            self._off_the_bus = begins[1]
            if "fallen off the bus" not in text:
                return None
        elif _OFF_THE_BUS_ENDS.match(text) is None:
            return None
        pci, self._off_the_bus = self._off_the_bus, None
        return None if pci is None else Told("gpu_lost", pci, 0, {"message": text})


def _xid(text: str) -> Told | None:
    found = _XID.match(text)
    if found is None:
        return None
    pci, gpu_instance, compute_instance, code, rest = found.groups()
    who = _WHO.match(rest or "")
    assert who is not None  # every part of it may be missing
    message = (rest or "")[who.end() :].strip()
    pid = who["pid"] or ""
    recovery = _RECOVERY.search(message)
    attributes = {
        "message": message,
        "pid": pid if pid.isdecimal() else "",
        "gpu_instance": _plain(gpu_instance),
        "compute_instance": _plain(compute_instance),
        "recovery": recovery[1] if recovery else "",
    }
    return Told("xid", pci, int(code), {name: word for name, word in attributes.items() if word})


def _plain(number: str | None) -> str:
    """Return an id as everybody else writes it: the log pads it with a zero."""
    return str(int(number)) if number else ""


def _sxid(text: str) -> Told | None:
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
    return Told("sxid", None, int(code), {name: word for name, word in attributes.items() if word})


def _uuid(text: str) -> Named | None:
    found = _UUID.match(text)
    return Named(found[1], found[2]) if found else None


def _init_failed(text: str) -> Told | None:
    found = _INIT_FAILED.match(text)
    return Told("gpu_init_failed", found[1], 0, {"message": found[2]}) if found else None


def _mismatch(text: str) -> Told | None:
    found = _MISMATCH.match(text)
    return Told("driver_mismatch", None, 0, {"message": found[1]}) if found else None


def _loaded(text: str) -> Told | None:
    found = _LOADED.match(text)
    return Told("driver_loaded", None, 0, {"version": found[1]}) if found else None


def _vgpu(text: str) -> Told | None:
    found = _VGPU.match(text)
    if found is None or _FAILS.search(found[2]) is None:
        return None
    return Told("vgpu_failed", None, 0, {"instance": found[1].lower(), "message": found[2]})
