"""Parsers of a process's own files in /proc. Pure."""

import re
from itertools import pairwise

import msgspec

from gpufleet.model.text import bounded
from gpufleet.model.view import normalise_uuid

MAX_NAME = 253
MAX_COMMAND_LINE = 128 << 10
MAX_ENVIRONMENT = 256 << 10

_PARENT, _START_TIME = 1, 19
"""Positions in /proc/PID/stat after the name in parentheses (proc(5): fields 4 and 22)."""

_O_PATH = 0o10000000
_HYPERVISOR = re.compile(r"(?:.*/)?(?:qemu-.+|kvm)", re.DOTALL)
_STEP_TITLE = re.compile(rb"slurmstepd: \[([1-9][0-9]{0,9})\.([0-9a-z]{1,32})\]", re.ASCII)
_JOB_ID = re.compile(rb"[1-9][0-9]{0,9}", re.ASCII)
_NAMESPACE_IDS = re.compile(rb"^NSpid:([\t 0-9]+)$", re.MULTILINE)
_USER = re.compile(rb"^Uid:\t([0-9]{1,10})\t", re.MULTILINE)
_STEP_NUMBER = re.compile(rb"[0-9]{1,9}", re.ASCII)  # 4294967291 and near it are batch, extern and interactive
_FLAGS = re.compile(rb"^flags:\s*([0-7]{1,16})$", re.MULTILINE)


class ProcessStat(msgspec.Struct, frozen=True):
    """Identity of a process.

    Attributes:
        name: the kernel's name of it, at most 15 bytes.
        parent: process id of its parent.
        start_time: clock ticks since boot.
    """

    name: bytes
    parent: int
    start_time: int


class VirtualMachine(msgspec.Struct, frozen=True):
    """Virtual machine of a QEMU process.

    Attributes:
        uuid: its UUID.
        name: its name, or empty.
    """

    uuid: str
    name: str


class JobStep(msgspec.Struct, frozen=True):
    """SLURM job and step; the step can be empty."""

    job: str
    step: str


def parse_stat(content: bytes) -> ProcessStat | None:
    """Parse `/proc/PID/stat`; None if it is malformed. The name can contain any characters."""
    head, _, tail = content.rpartition(b")")
    fields = tail.split()
    try:
        return ProcessStat(head.partition(b"(")[2], int(fields[_PARENT]), int(fields[_START_TIME]))
    except (ValueError, IndexError):
        return None


def parse_virtual_machine(command_line: bytes) -> VirtualMachine | None:
    """Return the virtual machine of a QEMU command line, or None if it has no UUID or is another program's.

    libvirt and Kata write `-uuid`, Proxmox VE writes `-smbios type=1,uuid=...`.
    """
    arguments = command_line[:MAX_COMMAND_LINE].decode("utf-8", "replace").split("\0")
    if not _HYPERVISOR.fullmatch(arguments[0]):
        return None
    options: dict[str, list[str]] = {}
    for option, value in pairwise(arguments):
        options.setdefault(option, []).append(value)
    texts = options.get("-uuid", [])[-1:] or [
        properties["uuid"]
        for properties in map(_properties, options.get("-smbios", []))
        if properties.get("type") == "1" and "uuid" in properties
    ]
    uuid = normalise_uuid(texts[-1]) if texts else None
    if uuid is None:
        return None
    name = _properties((options.get("-name") or [""])[-1], implied="guest").get("guest", "")
    return VirtualMachine(uuid, bounded(name, MAX_NAME))


def parse_step_title(command_line: bytes) -> JobStep | None:
    """Return the step that a slurmstepd process manages, from the title that it gives itself."""
    match = _STEP_TITLE.match(command_line)
    return None if match is None else JobStep(match[1].decode(), match[2].decode())


def parse_environment(environment: bytes) -> JobStep | None:
    """Return the job that SLURM wrote into a process's environment, or None."""
    variables = dict(entry.partition(b"=")[::2] for entry in environment[:MAX_ENVIRONMENT].split(b"\0"))
    job, step = variables.get(b"SLURM_JOB_ID", b""), variables.get(b"SLURM_STEP_ID", b"")
    if not _JOB_ID.fullmatch(job):
        return None
    return JobStep(job.decode(), step.decode() if _STEP_NUMBER.fullmatch(step) else "")


def namespaces_of(status: bytes) -> int:
    """Return the number of nested PID namespaces of a process below that of its /proc (`NSpid`), with that one."""
    match = _NAMESPACE_IDS.search(status)
    return 1 if match is None else len(match[1].split())


def user_of(status: bytes) -> int | None:
    """Return the real user id of a process. The owner of /proc/PID is root for any process that denies tracing."""
    match = _USER.search(status)
    return None if match is None else int(match[1])


def is_path_only(information: bytes) -> bool:
    """Return whether a descriptor was opened with O_PATH, which needs no access to the device (/proc/PID/fdinfo/N)."""
    match = _FLAGS.search(information)
    return match is None or bool(int(match[1], 8) & _O_PATH)


def _properties(text: str, *, implied: str = "") -> dict[str, str]:
    """Return the properties of a QEMU option `key=value,...`; two commas are one in a value.

    Args:
        text: the option's value.
        implied: key of a first property without one.
    """
    found: dict[str, str] = {}
    for place, part in enumerate(text.replace(",,", "\0").split(",")):
        key, separator, value = part.replace("\0", ",").partition("=")
        if separator:
            found.setdefault(key, value)
        elif place == 0 and implied:
            found[implied] = key
    return found
