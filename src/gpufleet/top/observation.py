"""Observations: what one poll of a source returned, of one machine or of a fleet. Pure."""

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gpufleet.exporters.display import value_text
from gpufleet.fleet.devices import hidden_devices
from gpufleet.model.api.answer import GpuRecord
from gpufleet.model.liveness import State
from gpufleet.model.machine import OK as GUEST_OK
from gpufleet.model.reading import Reading
from gpufleet.model.snapshot import HUB_READER, Device, Host, Snapshot
from gpufleet.model.status import ReaderState

MAX_PROBLEMS = 3
"""Maximum number of reader failures that a frame shows."""

ProcessKey = tuple[int, int | None]
"""Process id and start time: ids are reused."""


class ProcessOwner(msgspec.Struct, frozen=True):
    """User and command line of a process, as the kernel of the observed machine reports them."""

    user: str
    command: str


class ObservedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A machine, or a virtual machine that is read from inside.

    Attributes:
        name: its name.
        id: identity that no other machine of the observation has.
        state: why its readings are absent or old; empty if they are current.
        devices: its devices.
        host: its processor, memory, network and disks; None if the source has none.
        numa_nodes: PCI address to NUMA node of the slot, as far as it is known.
    """

    name: str
    id: str
    state: str = ""
    devices: tuple[Device, ...]
    host: Host | None = None
    numa_nodes: Mapping[str, int] = {}


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a poll.

    Attributes:
        title: name of the machine, or URL of the hub.
        facts: versions and counts, for the first line.
        measured_at: time of the newest reading.
        nodes: the machines; the first is the machine itself if the source is a machine.
        problems: failures of readers.
        owners: users and commands of processes; only if this process runs on the observed machine.
    """

    title: str
    facts: tuple[str, ...]
    measured_at: dt.datetime | None
    nodes: tuple[ObservedNode, ...]
    problems: tuple[str, ...] = ()
    owners: Mapping[ProcessKey, ProcessOwner] = {}


def observe_snapshot(snapshot: Snapshot, owners: Mapping[ProcessKey, ProcessOwner] | None = None) -> Observation:
    """Return the observation of a machine and its guests."""
    host = snapshot.host.readings
    facts = [f"gpufleet {snapshot.version}"]
    for label, metric in (("driver", "nvidia_driver_version"), ("CUDA", "nvidia_cuda_version")):
        reading = host.get(metric)
        if reading is not None and reading.value is not None:
            facts.append(f"{label} {value_text(metric, reading.value)}")
    guests = [
        ObservedNode(
            name=f"guest {guest.machine.name}",
            id=f"guest/{guest.vm_uuid}/{guest.machine.name}",
            state="" if guest.state == GUEST_OK else f"{guest.state}: {guest.detail}" if guest.detail else guest.state,
            devices=guest.devices,
        )
        for guest in snapshot.guests
    ]
    return Observation(
        title=snapshot.node.name,
        facts=tuple(facts),
        measured_at=snapshot.measured_at,
        nodes=(
            ObservedNode(
                name=snapshot.node.name,
                id="node",
                devices=snapshot.devices,
                host=snapshot.host,
                numa_nodes={one.address: one.numa_node for one in snapshot.host.pci or () if one.numa_node is not None},
            ),
            *guests,
        ),
        problems=_problems(snapshot),
        owners=owners or {},
    )


def observe_recorded(snapshots: Sequence[Snapshot], damage: Sequence[str] = ()) -> Observation:
    """Return the observation of the machines of a recorded poll, at least one; `damage` describes missing ones."""
    found = [observe_snapshot(one) for one in snapshots]
    if len(found) == 1:
        return msgspec.structs.replace(found[0], problems=(*damage, *found[0].problems)[:MAX_PROBLEMS])
    nodes = tuple(
        msgspec.structs.replace(node, id=f"{place}/{node.id}", state=node.state or _hub_state(snapshot), host=None)
        for place, (one, snapshot) in enumerate(zip(found, snapshots, strict=True))
        for node in one.nodes
    )
    devices = sum(len(node.devices) for node in nodes)
    return Observation(
        title="recording",
        facts=(f"machines {len(found)}, devices {devices}",),
        measured_at=max(one.measured_at for one in snapshots),
        nodes=nodes,
        problems=tuple(damage)[:MAX_PROBLEMS],
    )


def _hub_state(snapshot: Snapshot) -> str:
    """Return the state of a machine that its hub had no current readings of; empty for other machines."""
    failed = (one for one in snapshot.readers if one.reader == HUB_READER and one.state is ReaderState.FAILED)
    return next((one.last_error for one in failed), "")


def _problems(snapshot: Snapshot) -> tuple[str, ...]:
    failed = [
        f"{report.reader} {report.state}: {report.last_error}"
        for report in snapshot.readers
        if report.state not in (ReaderState.OK, ReaderState.NEVER)
    ]
    return tuple(dict.fromkeys(failed))[:MAX_PROBLEMS]


def observe_fleet(hub: str, records: Iterable[GpuRecord], more: bool = False) -> Observation:
    """Return the observation of a hub's GPUs; `more` states that the hub has more than these."""
    by_machine: dict[str, list[GpuRecord]] = {}
    for record in records:
        by_machine.setdefault(record.device.machine, []).append(record)
    nodes = []
    for machine, members in by_machine.items():
        devices = {device.key: device for device in map(_device_of, members)}
        hidden = hidden_devices(devices)
        shown = tuple(device for key, device in devices.items() if key not in hidden)
        nodes.append(
            ObservedNode(
                name=members[0].node,
                id=machine,
                state=_state_of(members),
                devices=shown,
                numa_nodes={
                    one.device.pci_address: one.numa_node
                    for one in members
                    if one.device.pci_address is not None and one.numa_node is not None
                },
            )
        )
    count = sum(map(len, by_machine.values()))
    counts = f"machines {len(by_machine)}, devices {count}" + (", more are not shown" if more else "")
    times = (one.measured_at for members in by_machine.values() for one in members)
    measured = max((at for at in times if at.tzinfo is not None), default=None)
    return Observation(title=hub, facts=(counts,), measured_at=measured, nodes=tuple(nodes))


def _state_of(members: list[GpuRecord]) -> str:
    """Return the state of a machine by that of its devices: empty if one of them is live."""
    states = {one.liveness.state for one in members if one.liveness is not None}
    if not states or State.LIVE in states:
        return ""
    age = min(one.age_seconds for one in members)
    return f"{', '.join(sorted(states))}, received {age:.0f} s ago"


def _device_of(record: GpuRecord) -> Device:
    device = record.device
    return Device(
        key=device.id.split("/", 2)[-1],
        kind=device.kind,
        side=device.side,
        uuid=device.uuid,
        pci_address=device.pci_address,
        instance=device.instance,
        parent=device.parent,
        index=record.index,
        name=device.name,
        readings=device.readings,
        dimensions=device.dimensions,
        holders=record.holders,
    )


def number_of(readings: Mapping[str, Reading], metric: str) -> float | None:
    """Return the value of a reading, or None if it is absent or not a number."""
    reading = readings.get(metric)
    return reading.value if reading is not None and isinstance(reading.value, int | float) else None


def text_of(readings: Mapping[str, Reading], metric: str) -> str:
    """Return the value of a reading as text; empty if it is absent."""
    reading = readings.get(metric)
    return "" if reading is None or reading.value is None else str(reading.value)
