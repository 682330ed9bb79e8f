"""Whether this is a guest, and whether this process is in a container: pure judgements over evidence."""

import re

import msgspec

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
