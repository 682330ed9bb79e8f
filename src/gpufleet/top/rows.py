"""Rows of devices and processes: GPUs with their MIG devices and vGPU instances, matched by key. Pure."""

import datetime as dt
from collections.abc import Iterable, Mapping

import msgspec

from gpufleet.exporters.display import device_status, holder_text, holders_text
from gpufleet.model.absence import Reason
from gpufleet.model.device_state import is_lost
from gpufleet.model.holdings import Holding
from gpufleet.model.reading import Reading
from gpufleet.model.snapshot import Device, ProcessReport
from gpufleet.model.view import ViewKind
from gpufleet.top.lines import NOTHING
from gpufleet.top.observation import Observation, ObservedNode, ProcessOwner, number_of, text_of

UTILIZATION = {
    ViewKind.GPU: ("gpu_utilization_ratio",),
    ViewKind.MIG: ("gpu_utilization_ratio", "gpu_graphics_activity_ratio"),
    ViewKind.VGPU: ("gpu_utilization_ratio",),
}
"""Metrics of the utilisation of a device, in order of preference. NVML measures only activity of a MIG device."""


class DeviceRow(msgspec.Struct, frozen=True, kw_only=True):
    """Row of a device. None is an absent value.

    Attributes:
        node: name of its machine.
        key: identity, unique over all machines of an observation.
        kind: GPU, MIG device or vGPU instance.
        number: index of a GPU; `index:instance` of a part of one.
        uuid: its UUID, or None.
        title: product name, MIG profile or vGPU type.
        identity: UUID, PCI address or view key.
        utilization_at: time of the reading of the utilisation, also if it is absent; None if unknown.
        utilization, memory_used, memory_total, temperature, power, power_limit: readings.
        status, good: state of the device, and whether it is good.
        is_lost: whether a GPU is lost: a reading that it still has is not in totals.
        holder: its holders in one line; empty if they are not collected.
        host: state of a GPU as a host of vGPUs; empty on other GPUs.
        is_passed_through: whether a GPU is bound to vfio-pci: if it is read, it is listed in its virtual machine too.
        vm: virtual machine of a vGPU instance.
        active: whether a process runs in the guest of a vGPU instance; None if unknown.
        lists_processes: whether its processes are known; without a list it can have some.
        parts: rows of its MIG devices and vGPU instances.
    """

    node: str
    key: str
    kind: ViewKind
    number: str
    uuid: str | None
    title: str
    identity: str
    utilization_at: dt.datetime | None
    utilization: float | None
    memory_used: float | None
    memory_total: float | None
    temperature: float | None
    power: float | None
    power_limit: float | None
    status: str
    good: bool
    holder: str
    host: str = ""
    is_lost: bool = False
    is_passed_through: bool = False
    vm: str = ""
    active: bool | None = None
    lists_processes: bool = False
    parts: tuple["DeviceRow", ...] = ()

    @property
    def search_text(self) -> str:
        """Return the text that filter and search look into, in lower case."""
        fields = (self.node, self.number, self.title, self.identity, self.status, self.holder, self.host, self.vm)
        return "\n".join(fields).lower()


class ProcessRow(msgspec.Struct, frozen=True, kw_only=True):
    """Row of a process on a device. None is an absent value.

    Attributes:
        node, device: its machine, and the key of the row of its device.
        key: identity, unique over all machines of an observation.
        number: number of the device, as in its row.
        pid: process id.
        user: its user: from the kernel, else from the only holder of the device; empty if unknown.
        holder: the only holder of the device; the number of holders if the device has several.
        is_shared: whether the device has several holders, so that the process is attributed to none of them.
        command: command line, else the kernel's name; empty if unknown.
        kinds: kinds of its contexts.
        memory, utilization: readings.
    """

    node: str
    device: str
    key: str
    number: str
    pid: int
    user: str
    holder: str
    is_shared: bool
    command: str
    kinds: str
    memory: float | None
    utilization: float | None

    @property
    def search_text(self) -> str:
        """Return the text that filter and search look into, in lower case."""
        return "\n".join((self.node, str(self.pid), self.user, self.holder, self.command, self.kinds)).lower()


class NodeRows(msgspec.Struct, frozen=True):
    """Rows of a node."""

    node: ObservedNode
    devices: tuple[DeviceRow, ...]
    processes: tuple[ProcessRow, ...]


class ObservedRows(msgspec.Struct, frozen=True):
    """Rows of an observation."""

    observation: Observation
    nodes: tuple[NodeRows, ...]

    @property
    def devices(self) -> list[DeviceRow]:
        """Return the rows of GPUs of all nodes, and of parts whose GPU is not listed."""
        return [row for one in self.nodes for row in one.devices]

    @property
    def lists_processes(self) -> bool:
        """Return whether the processes of a device are known."""
        return any(part.lists_processes for row in self.devices for part in (row, *row.parts))

    @property
    def processes(self) -> list[ProcessRow]:
        """Return the rows of the processes of all nodes."""
        return [row for one in self.nodes for row in one.processes]


def list_rows(observation: Observation) -> ObservedRows:
    """Return the rows of an observation."""
    nodes = []
    for node in observation.nodes:
        devices = tuple(_device_rows(node))
        nodes.append(NodeRows(node, devices, tuple(_process_rows(observation, node, devices))))
    return ObservedRows(observation, tuple(nodes))


def _device_rows(node: ObservedNode) -> list[DeviceRow]:
    """Return a row per GPU with those of its parts. A part whose GPU is not listed is a row of its own."""
    keys = {device.key for device in node.devices}
    parts: dict[str, list[Device]] = {}
    top: list[Device] = []
    for device in node.devices:
        if device.kind is not ViewKind.GPU and device.parent in keys and device.parent != device.key:
            parts.setdefault(device.parent, []).append(device)
        else:
            top.append(device)
    return [_row(node, device, parts) for device in top]


def row_key(node: ObservedNode, device: Device) -> str:
    """Return the key of the row of a device."""
    return f"{node.id}/{device.key}"


def _row(node: ObservedNode, device: Device, parts: Mapping[str, list[Device]]) -> DeviceRow:
    index = NOTHING if device.index is None else str(device.index)
    of_device = sorted(parts.get(device.key, ()), key=_instance_order) if device.kind is ViewKind.GPU else []
    return msgspec.structs.replace(
        _plain_row(node, device, index if device.kind is ViewKind.GPU else device.instance or NOTHING),
        host=_vgpu_host(device.readings, sum(part.kind is ViewKind.VGPU for part in of_device)),
        parts=tuple(_plain_row(node, part, f"{index}:{part.instance or '?'}", device) for part in of_device),
    )


def _plain_row(node: ObservedNode, device: Device, number: str, gpu: Device | None = None) -> DeviceRow:
    """Return the row of a device, without what it hosts; `gpu` is the GPU of a part."""
    readings = device.readings
    status, good = device_status(device, gpu)
    active = number_of(readings, "vgpu_active")
    use = _utilization(device)
    return DeviceRow(
        node=node.name,
        key=row_key(node, device),
        uuid=device.uuid,
        kind=device.kind,
        number=number,
        title=_title(device),
        identity=device.uuid or device.pci_address or device.key,
        utilization_at=None if use is None else use.measured_at,
        utilization=None if use is None or not isinstance(use.value, int | float) else use.value,
        memory_used=number_of(readings, "gpu_memory_used_bytes"),
        memory_total=number_of(readings, "gpu_memory_total_bytes"),
        temperature=number_of(readings, "gpu_temperature_celsius"),
        power=number_of(readings, "gpu_power_watts"),
        power_limit=number_of(readings, "gpu_power_limit_watts"),
        status=status,
        good=good,
        holder=holders_text(device.holders),
        is_lost=is_lost(readings),
        is_passed_through=any(one.absent is Reason.BOUND_TO_VFIO for one in readings.values()),
        vm=text_of(readings, "vgpu_vm_id"),
        active=None if active is None else bool(active),
        lists_processes=device.processes is not None,
    )


def _utilization(device: Device) -> Reading | None:
    """Return the reading of the utilisation of a device: the first with a value, else the first."""
    found = [device.readings[name] for name in UTILIZATION[device.kind] if name in device.readings]
    return next((one for one in found if isinstance(one.value, int | float)), found[0] if found else None)


def _instance_order(device: Device) -> tuple[bool, list[tuple[int, str]]]:
    """Sort key: MIG devices before vGPU instances, each by the numbers of its instance."""
    parts = (device.instance or "").replace("@", "/").split("/")
    numbers = [(int(part), "") if part.isascii() and part.isdigit() and len(part) < 10 else (0, part) for part in parts]
    return device.kind is ViewKind.VGPU, numbers


def _title(device: Device) -> str:
    name = device.name or text_of(device.readings, "vgpu_type") or text_of(device.readings, "mig_profile")
    if device.kind is ViewKind.GPU:
        return (name or f"{device.kind} ({device.side})").removeprefix("NVIDIA ")
    if device.kind is ViewKind.VGPU:
        return (text_of(device.readings, "vgpu_type") or name or "vGPU").removeprefix("NVIDIA ")
    return f"MIG {name.rpartition('MIG ')[2]}".rstrip()


def _vgpu_host(readings: Mapping[str, Reading], instances: int) -> str:
    """Return the state of a GPU as a host of vGPUs; empty if it hosts none and its host mode is absent."""
    mode = text_of(readings, "gpu_vgpu_host_mode")
    if not mode and not instances:
        return ""
    arr = text_of(readings, "gpu_vgpu_scheduler_arr_mode")
    supported = number_of(readings, "gpu_vgpu_scheduler_arr_supported")
    if supported == 0:
        arr = "not supported"
    counted = number_of(readings, "gpu_vgpu_instances")
    count = instances if counted is None else int(counted)
    known = NOTHING if counted is None and not instances else str(count)  # nvidia-smi does not list the instances
    return (
        f"vGPU host {mode or NOTHING}, scheduler {text_of(readings, 'gpu_vgpu_scheduler_policy') or NOTHING}, "
        f"ARR {arr or NOTHING}, {known} instance{'' if count == 1 else 's'}"
    )


def _process_rows(observation: Observation, node: ObservedNode, devices: Iterable[DeviceRow]) -> list[ProcessRow]:
    """Return a row per process and device."""
    rows = {part.key: part for row in devices for part in (row, *row.parts)}
    found = []
    for device in node.devices:
        row = rows.get(row_key(node, device))
        if row is None:
            continue
        holdings = device.holders.holdings if device.holders is not None else ()
        for process in device.processes or ():
            owner = observation.owners.get((process.pid, process.start_time))
            found.append(_process_row(row, process, holdings, owner))
    return found


def _process_row(
    device: DeviceRow, process: ProcessReport, holdings: tuple[Holding, ...], owner: ProcessOwner | None
) -> ProcessRow:
    only = holdings[0] if len(holdings) == 1 else None
    holder = f"one of {len(holdings)}" if len(holdings) > 1 else ""
    return ProcessRow(
        node=device.node,
        device=device.key,
        key=f"{device.key}/{process.pid}/{process.start_time}",
        number=device.number,
        pid=process.pid,
        user=owner.user if owner is not None else only.holder.user if only is not None else "",
        holder=holder_text(only.holder, only.parent) if only is not None else holder,
        is_shared=len(holdings) > 1,
        command=owner.command if owner is not None and owner.command else process.name,
        kinds=", ".join(process.kinds),
        memory=number_of(process.readings, "memory_bytes"),
        utilization=number_of(process.readings, "sm_utilization_ratio"),
    )
