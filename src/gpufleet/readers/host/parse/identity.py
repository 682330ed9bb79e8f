"""What a machine is known by: DMI, machine-id, os-release.

Whether this is a guest, and whether this process is in a container: pure judgements over evidence.
"""

import re
import uuid

import msgspec

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


NONE = "none"
OTHER = "other"
"""There is one, and nothing names it."""

_DMI_NAMES = (
    # vendor or product begins with, name; names are those of systemd-detect-virt(1)
    ("KubeVirt", "kvm"),
    ("VMware", "vmware"),
    ("VMW", "vmware"),
    ("innotek GmbH", "oracle"),
    ("VirtualBox", "oracle"),
    ("Xen", "xen"),
    ("HVM domU", "xen"),
    ("Bochs", "bochs"),
    ("Parallels", "parallels"),
    ("BHYVE", "bhyve"),
    ("Amazon EC2", "amazon"),
    ("Google", "google"),
    ("Microsoft Corporation", "microsoft"),
    ("Hyper-V", "microsoft"),
    ("QEMU", "qemu"),
    ("KVM", "kvm"),
    ("OpenStack", "kvm"),
    ("RHEV Hypervisor", "kvm"),
    ("Red Hat KVM", "kvm"),
    ("Nutanix", "kvm"),
    ("Alibaba Cloud", "kvm"),
    ("DigitalOcean", "kvm"),
)

_BARE_METAL_TOO = ("amazon", "google", "microsoft")
"""Makers of hypervisors whose name also stands on real machines: without the processor's flag it is no proof."""

_ENGINES = (
    # part of a mount's root or of a cgroup's path, name
    ("/kubelet/pods/", "kubernetes"),
    ("kubepods", "kubernetes"),
    ("/docker/containers/", "docker"),
    ("/docker/", "docker"),
    ("docker-", "docker"),
    ("libpod-", "podman"),
    ("/containers/storage/", "podman"),
    ("lxc.payload", "lxc"),
    ("/lxc/", "lxc"),
    ("crio-", "cri-o"),
    ("cri-containerd", "containerd"),
    ("/containerd/", "containerd"),
)


class MachineEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What tells a guest from a real machine.

    Attributes:
        flags: of the processor, or None on processors that list none (ARM, POWER).
        vendor, product: of DMI, or empty.
        hypervisor: content of /sys/hypervisor/type, or empty.
        clocks: clock sources that the kernel offers.
    """

    flags: frozenset[str] | None
    vendor: str = ""
    product: str = ""
    hypervisor: str = ""
    clocks: frozenset[str] = frozenset()


def judge_virtualization(evidence: MachineEvidence) -> str | None:
    """Name the hypervisor, `none` on a real machine, `other` for an unnamed one, None where nothing tells."""
    if evidence.flags is not None and "hypervisor" not in evidence.flags:
        return NONE
    if evidence.hypervisor:
        return evidence.hypervisor
    named = _by_dmi(evidence)
    if evidence.flags is None:
        return None if named in _BARE_METAL_TOO else named
    if "kvm-clock" in evidence.clocks and named in (None, "qemu"):
        return "kvm"
    if any(clock.startswith("hyperv") for clock in evidence.clocks) and named is None:
        return "microsoft"
    return named or OTHER


def _by_dmi(evidence: MachineEvidence) -> str | None:
    for start, name in _DMI_NAMES:
        if evidence.product.startswith(start) or evidence.vendor.startswith(start):
            return name
    return None


class ContainerEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What tells a container from the machine.

    Attributes:
        systemd: content of /run/systemd/container, or empty.
        environment: value of `container` in process 1's environment, or empty.
        has_dockerenv, has_containerenv: whether Docker's and Podman's marks are there.
        mount_roots: where the files come from that engines mount for every container (/etc/hosts and such).
        cgroups: content of /proc/self/cgroup.
        root_fstype: type of the root filesystem, or empty.
        sees_kernel: whether the kernel's own threads are in the process table.
        is_hiding: whether `hidepid` hides them, or nobody knows whether it does.
    """

    systemd: str = ""
    environment: str = ""
    has_dockerenv: bool = False
    has_containerenv: bool = False
    mount_roots: tuple[str, ...] = ()
    cgroups: str = ""
    root_fstype: str = ""
    sees_kernel: bool = False
    is_hiding: bool = False


def judge_container(evidence: ContainerEvidence) -> str | None:
    """Name the container engine, `other` for an unnamed one, `none` outside of containers, None if nothing tells.

    Marks in files prove nothing where kernel threads are seen and the root is no overlay: a machine whose disk
    was made from an image has them too. An overlay alone proves nothing either: machines without disks boot so.
    """
    on_machine = evidence.sees_kernel and evidence.root_fstype != "overlay"
    if evidence.systemd:
        return evidence.systemd
    if not on_machine:
        if evidence.has_containerenv:
            return "podman"
        for text in (*evidence.mount_roots, evidence.cgroups):
            for part, name in _ENGINES:
                if part in text:
                    return name
    if evidence.environment:
        return evidence.environment
    if evidence.has_dockerenv and not on_machine:
        return "docker"
    if evidence.sees_kernel:
        return NONE
    return None if evidence.is_hiding else OTHER


def parse_container_variable(environ: bytes) -> str:
    """Return `container` of a process's environment, or empty. Nothing else of it is looked at."""
    match = re.search(rb"(?:^|\0)container=([A-Za-z0-9._-]{1,40})(?:\0|$)", environ)
    return match[1].decode("ascii") if match is not None else ""
