"""VirtualMachineInstances of KubeVirt: devices, VSOCK, launcher pods and migration."""

import msgspec

from gpufleet.holders.kubernetes.parse.fields import LabelSelection, ObjectMetadata, instant, required, text
from gpufleet.model.holdings import MAX_LABELS
from gpufleet.model.kubernetes import MAX_DEVICES, ClusterVmi, VmiDevice, VmiMigration

VMI_LABELS = LabelSelection.of(("app", "app.kubernetes.io/*", "vm.kubevirt.io/name", "kubevirt.io/vm"))
"""Labels of virtual machines that are collected by default."""

VMI_ANNOTATIONS = LabelSelection.of(("kubevirt.io/gpu-metrics-collector*",))
"""Annotations of virtual machines that are collected by default: the user's choice of the way into the guest."""


class VmiSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Virtual machines and fields that are collected.

    Attributes:
        labels: allow-list of labels.
        annotations: allow-list of annotations.
        all_machines: whether machines without `gpus` and `hostDevices` are collected too.
    """

    labels: LabelSelection = VMI_LABELS
    annotations: LabelSelection = VMI_ANNOTATIONS
    all_machines: bool = False


class _SpecDevice(msgspec.Struct):
    name: str
    device: str | None = msgspec.field(name="deviceName", default=None)
    claim: str | None = msgspec.field(name="claimName", default=None)
    request: str | None = msgspec.field(name="requestName", default=None)


class _Devices(msgspec.Struct):
    gpus: list[_SpecDevice] | None = None
    host_devices: list[_SpecDevice] | None = msgspec.field(name="hostDevices", default=None)
    vsock: bool | None = msgspec.field(name="autoattachVSOCK", default=None)


class _VmiDomain(msgspec.Struct):
    devices: _Devices | None = None


class _VmiSpec(msgspec.Struct):
    domain: _VmiDomain | None = None


class _Migration(msgspec.Struct):
    source_node: str | None = msgspec.field(name="sourceNode", default=None)
    target_node: str | None = msgspec.field(name="targetNode", default=None)
    source_pod: str | None = msgspec.field(name="sourcePod", default=None)
    target_pod: str | None = msgspec.field(name="targetPod", default=None)
    completed: bool | None = None
    failed: bool | None = None
    started: str | None = msgspec.field(name="startTimestamp", default=None)
    ended: str | None = msgspec.field(name="endTimestamp", default=None)


class _GuestOs(msgspec.Struct):
    id: str | None = None
    name: str | None = None


class _VmiStatus(msgspec.Struct):
    phase: str | None = None
    node: str | None = msgspec.field(name="nodeName", default=None)
    cid: int | None = msgspec.field(name="VSOCKCID", default=None)
    pods: dict[str, str] | None = msgspec.field(name="activePods", default=None)
    migration: _Migration | None = msgspec.field(name="migrationState", default=None)
    guest_os: _GuestOs | None = msgspec.field(name="guestOSInfo", default=None)


class _Vmi(msgspec.Struct):
    metadata: ObjectMetadata
    spec: _VmiSpec | None = None
    status: _VmiStatus | None = None


_VMIS = msgspec.json.Decoder(_Vmi)
_DEFAULT = VmiSelection()


def parse_vmi(data: bytes | msgspec.Raw, selection: VmiSelection = _DEFAULT) -> ClusterVmi | None:
    """Decode a VirtualMachineInstance; return None if it has no devices and `all_machines` is not set.

    Raises:
        msgspec.DecodeError: if a field has another type than the API's.
        WireError: if it has no UID, name or namespace.
    """
    vmi = _VMIS.decode(data)
    domain = (vmi.spec or _VmiSpec()).domain or _VmiDomain()
    devices, status, metadata = domain.devices or _Devices(), vmi.status or _VmiStatus(), vmi.metadata
    if not (devices.gpus or devices.host_devices or selection.all_machines):
        return None
    cid = status.cid
    return ClusterVmi(
        uid=required(metadata.uid, "metadata.uid"),
        namespace=required(metadata.namespace, "metadata.namespace"),
        name=required(metadata.name, "metadata.name"),
        node=text(status.node),
        phase=text(status.phase),
        created=instant(metadata.created),
        deleting=metadata.deleted is not None,
        autoattach_vsock=bool(devices.vsock),
        vsock_cid=cid if cid is not None and 3 <= cid < 2**32 - 1 else None,
        devices=_devices(devices),
        labels=selection.labels.select(metadata.labels),
        annotations=selection.annotations.select(metadata.annotations),
        pods={text(uid): text(node) for uid, node in sorted((status.pods or {}).items())[:MAX_LABELS]},
        migration=_migration(status.migration) if status.migration else None,
        machine=metadata.controller,
        guest_os=text((status.guest_os or _GuestOs()).id or (status.guest_os or _GuestOs()).name),
    )


def _devices(devices: _Devices) -> tuple[VmiDevice, ...]:
    found = [
        VmiDevice(
            name=text(device.name),
            device_name=text(device.device),
            claim=text(device.claim),
            request=text(device.request),
            host_device=is_host_device,
        )
        for listed, is_host_device in ((devices.gpus, False), (devices.host_devices, True))
        for device in listed or ()
    ]
    return tuple(found[:MAX_DEVICES])


def _migration(state: _Migration) -> VmiMigration:
    return VmiMigration(
        source_node=text(state.source_node),
        target_node=text(state.target_node),
        source_pod=text(state.source_pod),
        target_pod=text(state.target_pod),
        completed=bool(state.completed),
        failed=bool(state.failed),
        started=instant(state.started),
        ended=instant(state.ended),
    )
