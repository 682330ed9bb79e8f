"""The snapshot: everything one agent knows of its machine and guests at an instant, as a document."""

import datetime as dt
import enum

import msgspec

from gpufleet.model.absence import Reason
from gpufleet.model.event import EventReport
from gpufleet.model.machine import Machine, PciFunction
from gpufleet.model.reading import DimReading, Provenance, Reading
from gpufleet.model.status import ReaderState
from gpufleet.model.view import Side, View, ViewKind

SNAPSHOT_SCHEMA = "gpufleet.snapshot/1"
"""Name and version of the document; a new number means that old readers would misread it."""


class AggregateValue(msgspec.Struct, frozen=True, kw_only=True):
    """One metric over several devices.

    Attributes:
        value: in the catalogue's unit, or None when no device reported.
        operation: `sum`, `mean` or `max`.
        reporting: devices that gave a value (the n of "n of m").
        devices: devices asked (the m).
    """

    value: float | int | None
    operation: str
    reporting: int
    devices: int


class Aggregate(msgspec.Struct, frozen=True, kw_only=True):
    """Totals over a machine's or allocation's GPUs.

    Attributes:
        coverage: "n of m devices": how many of them gave at least one value.
        reporting, devices: n and m.
        metrics: catalogue name to total; each says its own n of m.
    """

    coverage: str
    reporting: int
    devices: int
    metrics: dict[str, AggregateValue]


class ProcessReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One process on a device, as documents show it.

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
    """Where readings of one subject are from.

    Attributes:
        reader, lane: who read them, on which schedule.
        provenance: who measured.
        measured_at: when the newest of them were measured; how old they are is judged by it, also once they are stale.
    """

    reader: str
    lane: str
    provenance: Provenance
    measured_at: dt.datetime


class Device(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One view with its readings.

    Attributes:
        key: identity within the machine, see `View.key`.
        kind, side, uuid, pci_address, instance, parent, index: as in `View`.
        name: product name if it is known.
        readings: catalogue name to reading, merged over readers by their precedence.
        dimensions: readings of metrics with dimensions.
        processes: who uses it, or None where no reader lists them, or not lately.
        sources: where the readings are from, the most trusted reader first.
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
    sources: tuple[Source, ...] = ()

    @property
    def view(self) -> View:
        """Whose readings they are."""
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
        pci: every display and 3D controller on the bus, or None while it was not read.
    """

    readings: dict[str, Reading]
    dimensions: tuple[DimReading, ...] = ()
    pci: tuple[PciFunction, ...] | None = None
    sources: tuple[Source, ...] = ()


class ReaderReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one lane of one reader is doing, as documents show it; fields as in `ReaderStatus`."""

    reader: str
    lane: str
    state: ReaderState
    interval_seconds: float
    last_attempt: dt.datetime | None = None
    last_success: dt.datetime | None = None
    duration_seconds: float = 0.0
    failures: int = 0
    error_class: str = ""
    last_error: str = ""


class WayState(enum.StrEnum):
    """How a way into a virtual machine did when it was last asked."""

    ANSWERS = "answers"
    FAILS = "fails"
    NOT_ASKED = "not_asked"  # another one answers, or it shares a channel that did not open


class WayReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One way into a virtual machine.

    Attributes:
        way: what is asked, and over which channel.
        asks: for what: `gpus`, or `host` (processor, memory, network).
        state: how it did.
        last_attempt, last_success, last_failure: when it was asked, gave something, and did not.
        reason, last_error: of the last failure, however long ago; in the words of whoever said so.
    """

    way: str
    asks: str
    state: WayState = WayState.NOT_ASKED
    last_attempt: dt.datetime | None = None
    last_success: dt.datetime | None = None
    last_failure: dt.datetime | None = None
    reason: Reason | None = None
    last_error: str = ""


class Guest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A virtual machine read from inside. Who it is, is what the agent was told; the readings are its own claims.

    Attributes:
        machine: who it is.
        namespace, name: of the virtual machine.
        vm_uuid: its UUID.
        allocation: id of the allocation that it is for, if the agent was told of one.
        state: `ok`, or why there are no readings of its GPUs (the states of `guest_state`).
        detail: what is wrong, in the words of whoever said so.
        found_by: who told the agent of it: `configuration`, `folder` or `libvirt`, and what it is called there.
        ways: the ways into it, the preferred first.
        devices, host: its devices and its own processor, memory and network, and how the agent gets on with it.
        readers: how each reader is doing in it.
    """

    machine: Machine
    namespace: str = ""
    name: str = ""
    vm_uuid: str = ""
    allocation: str = ""
    state: str = ""
    detail: str = ""
    found_by: str = ""
    ways: tuple[WayReport, ...] = ()
    devices: tuple[Device, ...] = ()
    host: Host
    readers: tuple[ReaderReport, ...] = ()


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The whole document.

    Attributes:
        schema: `gpufleet.snapshot/1`.
        catalogue: version of the catalogue the names are from.
        version: of gpufleet.
        node: the machine.
        measured_at: when the newest reading was measured; each reading has its own time beside.
        devices: GPUs, MIG devices and vGPU instances seen from this machine.
        host: the machine's own readings.
        guests: virtual machines read from inside.
        readers: how each reader is doing.
        capabilities: what this agent can do here, by name: `available`, or a reason why not.
        aggregate: totals over the machine's physical GPUs.
        events: what happened of late, the newest first; a bounded number.
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
