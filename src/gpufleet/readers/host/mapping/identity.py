"""Mapping of the machine's identity and properties."""

from collections.abc import Callable

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.errors import WireError
from gpufleet.model.machine import Machine, MachineKind
from gpufleet.readers.host import plan
from gpufleet.readers.host.fetch import RootDisk
from gpufleet.readers.host.mapping import Readings
from gpufleet.readers.host.mapping.node import map_instance, map_kubernetes
from gpufleet.readers.host.parse.cloud import InstanceData
from gpufleet.readers.host.parse.identity import (
    ContainerEvidence,
    MachineEvidence,
    detect_container,
    detect_virtualization,
    parse_boot_id,
    parse_container_variable,
    parse_dmi_text,
    parse_machine_id,
    parse_os_name,
    parse_system_uuid,
)
from gpufleet.readers.host.parse.kernel import cpu_model, parse_cpuinfo
from gpufleet.readers.host.parse.services import parse_process_stat
from gpufleet.readers.host.parse.storage import FILE_MOUNTS, hidepid_option, parse_mountinfo, parse_udev
from gpufleet.readers.host.parse.text import count, decode, line, printable
from gpufleet.readers.host.source import FetchedFiles

NO_MODEL = Absent(Reason.NOT_REPORTED, "the processor reports no model, or gVisor hides it")


def _cpu_model(content: bytes, where: str) -> str | Absent:
    return cpu_model(parse_cpuinfo(content), where) or NO_MODEL


FILES: dict[str, tuple[str, Callable[[bytes, str], str | Absent]]] = {
    "host_hostname": (plan.HOSTNAME, line),
    "host_machine_id": (plan.MACHINE_ID, parse_machine_id),
    "host_boot_id": (plan.BOOT_ID, parse_boot_id),
    "host_system_uuid": (f"{plan.DMI}/product_uuid", parse_system_uuid),
    "host_system_serial": (f"{plan.DMI}/product_serial", parse_dmi_text),
    "host_system_vendor": (f"{plan.DMI}/sys_vendor", parse_dmi_text),
    "host_product_name": (f"{plan.DMI}/product_name", parse_dmi_text),
    "host_bios_version": (f"{plan.DMI}/bios_version", parse_dmi_text),
    "host_kernel_release": (plan.KERNEL_RELEASE, line),
    "host_cpu_model": (plan.CPUINFO, _cpu_model),
    "host_nvidia_kernel_driver_version": (plan.NVIDIA_VERSION, line),
}
"""Metric to its file and parser."""

VENDOR_TEXTS = (
    "host_machine_id", "host_system_uuid", "host_system_serial", "host_system_vendor", "host_product_name",
    "host_bios_version",
)  # fmt: skip
"""Metrics set by firmware or disk images. An invalid text is absent, without an error of the pass."""

NO_EVIDENCE = Absent(Reason.NO_DATA, "neither the processor nor DMI shows it")
HIDDEN_EVIDENCE = Absent(Reason.NOT_PERMITTED, "other users' processes are hidden, and there is no other evidence")
NO_DRIVER = Absent(Reason.NO_DRIVER, "the kernel module nvidia is not loaded")
NO_SIZE = Absent(Reason.NOT_SUPPORTED, "the disk reports no size")

SECTOR_BYTES = 512
"""Unit of the size of a block device in sysfs, whatever the size of its sectors."""


def map_identity(
    source: FetchedFiles,
    disk: RootDisk,
    node: plan.KubernetesNode | None,
    into: Readings,
    metadata: InstanceData | Absent | None = None,
) -> Machine | None:
    """Add the texts of the static lane; return the machine's identity, or None without a host name.

    Args:
        source: files of the lane.
        disk: disk of the root filesystem.
        node: sources of the machine's name in Kubernetes, or None if it is not read.
        into: receives the readings.
        metadata: as in `map_instance`.
    """
    values = into.values
    for metric, (path, parse) in FILES.items():
        if metric in VENDOR_TEXTS:
            values[metric] = _vendor_text(source, path, parse)
        else:
            values[metric] = source.take(path, parse)
    if plan.NVIDIA_VERSION not in source.fetched.files:
        absent = source.absence(plan.NVIDIA_VERSION)
        values["host_nvidia_kernel_driver_version"] = NO_DRIVER if absent.reason is Reason.NOT_SUPPORTED else absent
    release = next((path for path in plan.OS_RELEASE if path in source.fetched.files), plan.OS_RELEASE[0])
    values["host_os_name"] = source.take(release, parse_os_name)
    values["host_virtualization"] = _virtualization(source)
    container = detect_container(_container_evidence(source, disk))
    values["host_container"] = HIDDEN_EVIDENCE if container is None else container
    _map_root_disk(source, disk, into)
    map_kubernetes(source, node, into)
    map_instance(source, known_system_uuid(source), into, metadata)

    def known(metric: str) -> str | None:
        value = values[metric]
        return value if isinstance(value, str) else None

    name = known("host_hostname")
    if name is None:
        source.fail(f"{plan.HOSTNAME}: {source.fetched.errors.get(plan.HOSTNAME, 'unusable')}")
        return None
    return Machine(
        name=name,
        kind=MachineKind.NODE,
        machine_id=known("host_machine_id"),
        system_uuid=known("host_system_uuid"),
        boot_id=known("host_boot_id"),
        k8s_node_name=known("host_k8s_node_name"),
        k8s_node_uid=known("host_k8s_node_uid"),
        cloud_provider=known("host_cloud_provider"),
        instance_id=known("host_instance_id"),
        instance_type=known("host_instance_type"),
        region=known("host_cloud_region"),
        zone=known("host_cloud_zone"),
    )


def known_system_uuid(source: FetchedFiles) -> str:
    """Return the machine's system UUID, or empty if it is unknown."""
    path, parse = FILES["host_system_uuid"]
    found = _vendor_text(source, path, parse)
    return found if isinstance(found, str) else ""


def _vendor_text(source: FetchedFiles, path: str, parse: Callable[[bytes, str], str | Absent]) -> str | Absent:
    content = source.fetched.files.get(path)
    if content is None:
        absent = source.absence(path)
        if absent.reason is Reason.NOT_PERMITTED:
            return Absent(Reason.NOT_PERMITTED, "root only")
        return absent
    try:
        return parse(content, path)
    except WireError as error:
        return Absent(Reason.INVALID_VALUE, str(error))


def _virtualization(source: FetchedFiles) -> str | Absent:
    def text(path: str) -> str:
        return printable(decode(source.fetched.files.get(path, b"")))

    content = source.fetched.files.get(plan.CPUINFO)
    if content is None:
        return source.absence(plan.CPUINFO)
    flags = parse_cpuinfo(content).get("flags")
    evidence = MachineEvidence(
        flags=None if flags is None else frozenset(flags.split()),
        vendor=text(f"{plan.DMI}/sys_vendor"),
        product=text(f"{plan.DMI}/product_name"),
        hypervisor=text(plan.HYPERVISOR),
        clocks=frozenset(text(plan.CLOCKS).split()),
    )
    name = detect_virtualization(evidence)
    return NO_EVIDENCE if name is None else name


def _container_evidence(source: FetchedFiles, disk: RootDisk) -> ContainerEvidence:
    files = source.fetched.files
    mounts = source.take(plan.MOUNTINFO, parse_mountinfo, required=True)
    known = () if isinstance(mounts, Absent) else mounts
    kthreadd = source.take(plan.KERNEL_THREADS, parse_process_stat)
    return ContainerEvidence(
        systemd=printable(decode(files.get(plan.SYSTEMD_CONTAINER, b""))),
        environment=parse_container_variable(files.get(plan.INIT_ENVIRON, b"")),
        has_dockerenv=plan.DOCKERENV in files,
        has_containerenv=plan.CONTAINERENV in files,
        mount_roots=tuple(mount.root for mount in known if mount.point in FILE_MOUNTS),
        cgroups=decode(files.get(plan.CGROUP, b"")),
        root_fstype=disk.mount.fstype if disk.mount is not None else "",
        sees_kernel=not isinstance(kthreadd, Absent) and kthreadd[0] == "kthreadd",
        is_hiding=isinstance(mounts, Absent) or hidepid_option(known) != "",
    )


def _map_root_disk(source: FetchedFiles, disk: RootDisk, into: Readings) -> None:
    metrics = ("host_root_device", "host_root_disk_model", "host_root_disk_serial", "host_root_disk_bytes")
    if disk.mount is None:
        absent = source.absence(plan.MOUNTINFO) if plan.MOUNTINFO in source.fetched.errors else Absent(
            Reason.NO_DATA, f"{plan.MOUNTINFO} has no root mount"
        )  # fmt: skip
        into.values.update(dict.fromkeys(metrics, absent))
        return
    if not disk.device:
        absent = Absent(Reason.NOT_SUPPORTED, f"the root filesystem is {disk.mount.fstype}, which has no block device")
        into.values.update(dict.fromkeys(metrics, absent))
        return
    into.values["host_root_device"] = printable(f"/dev/{disk.device}")
    if len(disk.disks) != 1:
        several = Absent(Reason.NOT_SUPPORTED, printable(f"the root is on several disks: {', '.join(disk.disks)}"))
        into.values.update(dict.fromkeys(metrics[1:], several))
        return
    name = disk.disks[0]
    into.values["host_root_disk_model"] = _disk_text(source, name, ("device/model",), ("ID_MODEL",))
    into.values["host_root_disk_serial"] = _disk_text(
        source, name, ("device/serial", "serial"), ("ID_SERIAL_SHORT", "ID_SERIAL")
    )
    sectors = source.take(f"{plan.BLOCK}/{name}/size", lambda content, where: count(decode(content), where))
    into.values["host_root_disk_bytes"] = sectors if isinstance(sectors, Absent) else sectors * SECTOR_BYTES or NO_SIZE


def _disk_text(source: FetchedFiles, name: str, files: tuple[str, ...], notes: tuple[str, ...]) -> str | Absent:
    """Return the first text from the disk's files, or else from its udev properties."""
    folder = f"{plan.BLOCK}/{name}"
    for file in files:
        text = printable(decode(source.fetched.files.get(f"{folder}/{file}", b"")))
        if text:
            return text
    number = decode(source.fetched.files.get(f"{folder}/dev", b"")).strip()
    udev = parse_udev(source.fetched.files.get(f"/run/udev/data/b{number}", b""))
    for note in notes:
        if udev.get(note):
            return udev[note]
    return Absent(Reason.NOT_SUPPORTED, printable(f"the disk {name} does not report it"))
