"""Snapshot document: all that an agent knows about its machine and guests at an instant."""

import datetime as dt
import enum

import msgspec

from gpufleet.model.absence import Reason
from gpufleet.model.event import EventReport
from gpufleet.model.holdings import DeviceHolders, UnresolvedDevices
from gpufleet.model.machine import Machine, PciFunction
from gpufleet.model.reading import DimReading, Provenance, Reading
from gpufleet.model.status import ReaderState
from gpufleet.model.view import Side, View, ViewKind

SNAPSHOT_SCHEMA = "gpufleet.snapshot/1"
"""Name and version of the document; a new number means that old clients would misread it."""


class AggregateValue(msgspec.Struct, frozen=True, kw_only=True):
    """Aggregate of one metric over several devices.

    Attributes:
        value: in the catalogue's unit, or None when no device reported.
        operation: `sum`, `mean` or `max`.
        reporting: devices that gave a value (the n of "n of m").
        devices: all devices (the m).
    """

    value: float | int | None
    operation: str
    reporting: int
    devices: int


class Aggregate(msgspec.Struct, frozen=True, kw_only=True):
    """Totals over a machine's or allocation's GPUs.

    Attributes:
        coverage: "n of m devices": devices that are not lost and gave at least one value.
        reporting, devices: n and m.
        metrics: catalogue name to total; each has its own n of m.
    """

    coverage: str
    reporting: int
    devices: int
    metrics: dict[str, AggregateValue]


class ProcessReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Process on a device in documents.

    Attributes:
        pid, kinds, start_time, name: as in `Process`.
        readings: reading to value or absence, by the names of `Process.values`.
    """

    pid: int
    kinds: tuple[str, ...]
    start_time: int | None = None
    name: str = ""
    readings: dict[str, Reading]


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Source of readings of one subject.

    Attributes:
        reader, lane: reader and schedule.
        provenance: source of the values.
        measured_at: time of the newest measurement; it determines the age of the readings, also of stale ones.
    """

    reader: str
    lane: str
    provenance: Provenance
    measured_at: dt.datetime


class Device(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """View with its readings.

    Attributes:
        key: identity within the machine, see `View.key`.
        kind, side, uuid, pci_address, instance, parent, index: as in `View`.
        name: product name if known.
        readings: catalogue name to reading, merged over readers by their precedence.
        dimensions: readings of metrics with dimensions.
        processes: processes on the device, or None if no reader lists them, or not recently.
        holders: pods, jobs and virtual machines that have the device; None if they are not collected, or if the device
            is split and its parts have the holders.
        sources: sources of the readings, the most trusted reader first.
    """

    key: str
    kind: ViewKind
    side: Side
    uuid: str | None
    pci_address: str | None = None
    instance: str | None = None
    parent: str | None = None
    index: int | None = None
    name: str | None = None
    readings: dict[str, Reading]
    dimensions: tuple[DimReading, ...] = ()
    processes: tuple[ProcessReport, ...] | None = None
    holders: DeviceHolders | None = None
    sources: tuple[Source, ...] = ()

    @property
    def view(self) -> View:
        """View of the readings."""
        return View(
            kind=self.kind,
            side=self.side,
            uuid=self.uuid,
            pci_address=self.pci_address,
            instance=self.instance,
            parent=self.parent,
            index=self.index,
        )


class Host(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The machine's own readings.

    Attributes:
        readings, dimensions, sources: as in `Device`.
        pci: every display and 3D controller on the bus, or None until it was read.
    """

    readings: dict[str, Reading]
    dimensions: tuple[DimReading, ...] = ()
    pci: tuple[PciFunction, ...] | None = None
    sources: tuple[Source, ...] = ()


HUB_READER = "hub"
"""Reader in the snapshot of a machine of a hub: whether the hub has current readings of the machine."""


class ReaderReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Status of one lane of one reader in documents; fields as in `ReaderStatus`."""

    reader: str
    lane: str
    state: ReaderState
    interval_seconds: float | None = None
    last_attempt: dt.datetime | None = None
    last_success: dt.datetime | None = None
    duration_seconds: float | None = None
    failures: int = 0
    error_class: str = ""
    last_error: str = ""


class AccessPathState(enum.StrEnum):
    """Result of the last attempt on an access path."""

    ANSWERS = "answers"
    FAILS = "fails"
    NOT_TRIED = "not_tried"  # another path is active, or its channel did not open for another path


class AccessPathReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An access path into a virtual machine.

    Attributes:
        name: reader and channel.
        reads: `gpus`, or `host` (processor, memory, network).
        state: result of the last attempt.
        last_attempt, last_success, last_failure: times of attempts.
        reason, last_error: of the last failure, kept after a success.
    """

    name: str
    reads: str
    state: AccessPathState = AccessPathState.NOT_TRIED
    last_attempt: dt.datetime | None = None
    last_success: dt.datetime | None = None
    last_failure: dt.datetime | None = None
    reason: Reason | None = None
    last_error: str = ""


class Guest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A virtual machine that is read from inside. Its identity is configured; the readings are its own claims.

    Attributes:
        machine: identity of the machine.
        namespace, name: namespace and name of the virtual machine.
        vm_uuid: its UUID.
        allocation: id of its allocation, if configured.
        state: `ok`, or why its GPUs cannot be read (the states of `guest_state`).
        detail: description of the problem.
        excluded: whether the agent opens no connection to it: its user does not permit it, or it is not supported.
        found_by: source and label: `configuration`, `folder`, `libvirt` or `kubevirt`, and its name there.
        labels: its labels in Kubernetes, those on the allow-list.
        access_paths: access paths into it in order of preference.
        devices, host: its devices; its processor, memory and network.
        readers: status of each reader in it.
    """

    machine: Machine
    namespace: str = ""
    name: str = ""
    vm_uuid: str = ""
    allocation: str = ""
    state: str = ""
    detail: str = ""
    excluded: bool = False
    found_by: str = ""
    labels: dict[str, str] = {}
    access_paths: tuple[AccessPathReport, ...] = ()
    devices: tuple[Device, ...] = ()
    host: Host
    readers: tuple[ReaderReport, ...] = ()


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Snapshot document.

    Attributes:
        schema: `gpufleet.snapshot/1`.
        catalogue: version of the catalogue.
        version: gpufleet version.
        node: the machine.
        measured_at: time of the newest reading; each reading has its own time.
        devices: GPUs, MIG devices and vGPU instances seen from this machine.
        host: the machine's own readings.
        guests: virtual machines read from inside.
        readers: status of each reader.
        capabilities: capabilities of this agent by name: `available`, or the reason of the absence.
        aggregate: totals over the machine's physical GPUs.
        events: most recent events, the newest first; a bounded number.
        unresolved: device names of holder sources that identify no device here; None if holders are not collected.
    """

    schema: str
    catalogue: int
    version: str
    node: Machine
    measured_at: dt.datetime
    devices: tuple[Device, ...]
    host: Host
    guests: tuple[Guest, ...]
    readers: tuple[ReaderReport, ...]
    capabilities: dict[str, str]
    aggregate: Aggregate
    events: tuple[EventReport, ...] = ()
    unresolved: UnresolvedDevices | None = None
