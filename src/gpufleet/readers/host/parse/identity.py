"""Parsers of identity files (DMI, machine-id, os-release), and detection of virtualization and containers. Pure."""

import re
import uuid

import msgspec

from gpufleet.fleet.machine_ids import is_machine_id, is_placeholder_uuid, is_uuid
from gpufleet.model.errors import WireError
from gpufleet.readers.host.parse.text import decode, line, printable

PLACEHOLDER_TEXTS = frozenset(
    (
        "(none)", "0123456789", "123456789", "1234567890", "chassis serial number", "default string", "empty",
        "invalid", "n/a", "na", "none", "not applicable", "not available", "not specified", "o.e.m.", "oem", "sernum0",
        "serial number", "system manufacturer", "system product name", "system serial number", "to be filled by o.e.m.",
        "unknown",
    )
)  # fmt: skip
"""Default DMI texts of firmware, in lower case. Zeros of any length are one too."""


def parse_system_uuid(content: bytes, where: str) -> str:
    """Parse DMI's product UUID as canonical lower-case text.

    SMBIOS 2.6 defined the first three fields as little-endian; earlier versions did not define their order. The kernel
    swaps them for 2.6 and later and prints earlier ones unchanged, as dmidecode and the kubelet do. Its spelling is
    kept: swapping again would give one machine two identities. Placeholders are detected in either byte order.

    Raises:
        WireError: if the text is not a UUID, or is all zeros, all ones, or a known placeholder.
    """
    text = decode(content).strip().lower()
    if not is_uuid(text):
        raise WireError(where, f"{printable(text)[:40]!r} is not a UUID")
    if is_placeholder_uuid(uuid.UUID(text)):
        raise WireError(where, f"{text} is a firmware default")
    return text


def parse_machine_id(content: bytes, where: str) -> str:
    """Parse machine-id(5): 32 hexadecimal digits.

    Raises:
        WireError: for any other text, such as `uninitialized`, or all zeros.
    """
    text = decode(content).strip().lower()
    if not is_machine_id(text):
        raise WireError(where, f"{printable(text)[:40]!r} is not a machine id")
    return text


def parse_boot_id(content: bytes, where: str) -> str:
    """Parse the kernel's boot id.

    Raises:
        WireError: if the text is not a UUID.
    """
    text = decode(content).strip().lower()
    if not is_uuid(text):
        raise WireError(where, f"{printable(text)[:40]!r} is not a UUID")
    return text


def parse_dmi_text(content: bytes, where: str) -> str:
    """Parse a DMI text.

    Raises:
        WireError: if the text is empty or a firmware default.
    """
    text = line(content, where)
    if text.lower() in PLACEHOLDER_TEXTS or set(text) == {"0"}:
        raise WireError(where, f"{text!r} is a firmware default")
    return text


def parse_os_name(content: bytes, where: str) -> str:
    """Parse PRETTY_NAME, or else NAME, of os-release(5).

    Raises:
        WireError: if both are missing.
    """
    fields = dict(row.partition("=")[::2] for row in decode(content).splitlines() if not row.startswith("#"))
    for name in ("PRETTY_NAME", "NAME"):
        text = printable(_unquoted(fields.get(name, "")))
        if text:
            return text
    raise WireError(where, "PRETTY_NAME and NAME are missing")


def _unquoted(text: str) -> str:
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'":
        text = text[1:-1]
    return re.sub(r'\\(["\'$`\\])', r"\1", text)


NONE = "none"
OTHER = "other"
"""Present, but not identified."""

_DMI_NAMES = (
    # prefix of vendor or product, name as in systemd-detect-virt(1)
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

_AMBIGUOUS_VENDORS = ("amazon", "google", "microsoft")
"""Hypervisor vendors that also sell physical machines: no proof without the processor's flag."""

_ENGINES = (
    # substring of a mount's root or a cgroup path, name
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
    """Evidence for virtualization.

    Attributes:
        flags: of the processor, or None on processors without flags (ARM, POWER).
        vendor, product: of DMI, or empty.
        hypervisor: content of /sys/hypervisor/type, or empty.
        clocks: available clock sources of the kernel.
    """

    flags: frozenset[str] | None
    vendor: str = ""
    product: str = ""
    hypervisor: str = ""
    clocks: frozenset[str] = frozenset()


def detect_virtualization(evidence: MachineEvidence) -> str | None:
    """Return the hypervisor, `none` on a physical machine, `other` if unidentified, None without evidence."""
    if evidence.flags is not None and "hypervisor" not in evidence.flags:
        return NONE
    if evidence.hypervisor:
        return evidence.hypervisor
    vendor = _by_dmi(evidence)
    if evidence.flags is None:
        return None if vendor in _AMBIGUOUS_VENDORS else vendor
    if "kvm-clock" in evidence.clocks and vendor in (None, "qemu"):
        return "kvm"
    if any(clock.startswith("hyperv") for clock in evidence.clocks) and vendor is None:
        return "microsoft"
    return vendor or OTHER


def _by_dmi(evidence: MachineEvidence) -> str | None:
    for start, name in _DMI_NAMES:
        if evidence.product.startswith(start) or evidence.vendor.startswith(start):
            return name
    return None


class ContainerEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence for a container.

    Attributes:
        systemd: content of /run/systemd/container, or empty.
        environment: value of `container` in the environment of process 1, or empty.
        has_dockerenv, has_containerenv: whether the marker files of Docker and Podman exist.
        mount_roots: roots of the files that engines mount into every container (such as /etc/hosts).
        cgroups: content of /proc/self/cgroup.
        root_fstype: type of the root filesystem, or empty.
        sees_kernel: whether kernel threads are in the process table.
        is_hiding: whether `hidepid` hides them, or may hide them.
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


def detect_container(evidence: ContainerEvidence) -> str | None:
    """Return the container engine, `other` if unidentified, `none` outside of containers, None without evidence.

    Marker files are ignored if kernel threads are visible and the root is not an overlay: a machine with a disk built
    from an image has them too. An overlay alone is no evidence: diskless machines also boot from one.
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
    """Return the variable `container` of a process environment, or empty; no other variable is read."""
    match = re.search(rb"(?:^|\0)container=([A-Za-z0-9._-]{1,40})(?:\0|$)", environ)
    return match[1].decode("ascii") if match is not None else ""
