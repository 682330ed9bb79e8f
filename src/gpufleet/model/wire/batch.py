"""Batch as columns, in transit and in the store: machines, views and absences are listed once and referenced by index.

Field order is the format: every struct is a MessagePack array. Fields may be added at the end, with a default; no field
is removed or reordered within a version. The bounds in the types are part of the format. `codecs/batch` has the bytes.

`Batch` and `MachineReport` are the same content as records, before a sender turns it into columns.
"""

from collections.abc import Callable, Iterable
from typing import Annotated, Generic, TypeVar

import msgspec

from gpufleet.model.absence import Reason
from gpufleet.model.event import Event
from gpufleet.model.holdings import DeviceState, Holding, UnresolvedCount
from gpufleet.model.kubernetes import ClusterClaim, ClusterNode, ClusterPod, ClusterSlice, ClusterVmi, CopyStatus
from gpufleet.model.machine import Machine, PciFunction
from gpufleet.model.reading import Sample
from gpufleet.model.status import Heartbeat, ReaderStatus
from gpufleet.model.view import View

WIRE_VERSION = 1
"""Version of the format; the first element of every batch."""

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
"""Name of a cluster, sender, reader or metric."""

Text = Annotated[str, msgspec.Meta(max_length=1024)]
"""Measured text, or detail of an absence."""

Label = Annotated[str, msgspec.Meta(max_length=4096)]
"""Value of a dimension; mount points can be as long as a path."""

Instant = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
"""Nanoseconds since 1970."""

Index = Annotated[int, msgspec.Meta(ge=0)]
"""Position in one of the batch's lists."""

IndexOrNone = Annotated[int, msgspec.Meta(ge=-1)]
"""Position in one of the batch's lists, or -1 for none."""

ProcessId = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
"""Process id as the driver reports it."""

Tick = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""Clock ticks since boot."""

ShortText = Annotated[str, msgspec.Meta(max_length=64)]
"""Kernel name of a process."""

MAX_PROCESSES = 1024
"""Maximum number of processes in a list."""

MAX_OBJECTS = 5000
"""Maximum number of objects of a kind in a cluster part. A collector with more sends several batches."""

Cell = int | float | Text | None
"""Value in a column; None means absent, with the reason in the row's absence set."""


class WireAbsence(msgspec.Struct, frozen=True, array_like=True):
    """Absence of a metric of a row."""

    metric: Name
    reason: Reason
    detail: Text = ""


class SampleBlock(msgspec.Struct, array_like=True):
    """Rows of samples that share reader, lane, provenance and metrics. All lists are of equal length.

    Attributes:
        reader, lane, provenance: of every row.
        metrics: catalogue name of each column. Only metrics without dimensions.
        machine: row to index in `WireBatch.machines`.
        view: row to index in `WireBatch.views`, or -1 for the machine itself.
        measured_at: row to nanoseconds since 1970.
        driver_session: row to identity of the driver load, or 0.
        absence: row to index in `WireBatch.absences`, or -1 if nothing is absent.
        columns: a list per metric, in the order of `metrics`; a hub may use arrays or a `Matrix` instead.
    """

    reader: Name
    lane: Name
    provenance: Name
    metrics: Annotated[list[Name], msgspec.Meta(max_length=1024)]
    machine: list[Index]
    view: list[IndexOrNone]
    measured_at: list[Instant]
    driver_session: list[Index]
    absence: list[IndexOrNone]
    columns: list[list[Cell]]


class DimBlock(msgspec.Struct, array_like=True):
    """Values of a metric with dimensions. All lists are of equal length.

    Attributes:
        metric: catalogue name.
        reader, lane, provenance: of every row.
        machine, view, measured_at, driver_session: as in `SampleBlock`.
        labels: a list per dimension, in the catalogue's order.
        values: None if absent.
        absence: row to index in `WireBatch.absences` (a set with a single element), or -1.
    """

    metric: Name
    reader: Name
    lane: Name
    provenance: Name
    machine: list[Index]
    view: list[IndexOrNone]
    measured_at: list[Instant]
    driver_session: list[Index]
    labels: Annotated[list[list[Label]], msgspec.Meta(max_length=16)]
    values: list[Cell]
    absence: list[IndexOrNone]


class ProcessList(msgspec.Struct, array_like=True):
    """Processes of a view at an instant. The lists from `pids` on, and every column, are of equal length.

    Attributes:
        view: index in `WireBatch.views`.
        reader, lane, provenance, measured_at, driver_session: of the sample with which the list was read.
        total: number of processes; more than are listed if the list was cut.
        readings: names from `model.process.PROCESS_READINGS`, one per column.
        pids: process ids.
        start_times: clock ticks since boot, or None.
        kinds: kinds of use of each process.
        names: short names from the kernel, or empty texts.
        absence: process to index in `WireBatch.absences`, or -1 if nothing is absent.
        columns: a list per reading.
    """

    view: Index
    reader: Name
    lane: Name
    provenance: Name
    measured_at: Instant
    driver_session: Index
    total: Index
    readings: Annotated[list[Name], msgspec.Meta(max_length=64)]
    pids: Annotated[list[ProcessId], msgspec.Meta(max_length=MAX_PROCESSES)]
    start_times: list[Tick | None]
    kinds: list[Annotated[list[Name], msgspec.Meta(max_length=16)]]
    names: list[ShortText]
    absence: list[IndexOrNone]
    columns: list[list[Cell]]


class MachinePart(msgspec.Struct, array_like=True):
    """Data of a machine beside its samples; `machine` is an index in `WireBatch.machines`.

    `device_holders` has every device with a holder state, or is None if it is not part of this batch. `unresolved`
    counts the unresolved device names of the same round.
    """

    machine: Index
    events: list[Event] = []
    readers: list[ReaderStatus] = []
    holdings: list[Holding] = []
    inventory: list[PciFunction] | None = None
    processes: list[ProcessList] = []
    device_holders: list[DeviceState] | None = None
    unresolved: list[UnresolvedCount] = []


class RemovedObject(msgspec.Struct, frozen=True, array_like=True):
    """Object that was deleted from the Kubernetes API, or has no GPU any more.

    Attributes:
        resource: `plural.group` of its kind, as in `CopyStatus`.
        uid: of the object.
        at: when the collector received the change.
    """

    resource: Name
    uid: Name
    at: Instant


class ClusterPart(msgspec.Struct, frozen=True, array_like=True):
    """Objects of the Kubernetes API, from the collector of a cluster.

    New and changed objects are sent at once, and all objects every `REPEAT_SECONDS`.

    Attributes:
        observed_at: time at which the collector had the objects in this state.
        system_uid: UID of the namespace `kube-system`, evidence of the cluster's identity; empty if unknown.
        server_version: of the API server, such as `v1.36.2`; empty if unknown.
        copies: status of the collector's copy of each resource.
        nodes, pods, slices, claims, vmis: new, changed and repeated objects.
        removed: objects that have ended.
    """

    observed_at: Instant
    system_uid: Annotated[str, msgspec.Meta(max_length=253)] = ""
    server_version: ShortText = ""
    copies: Annotated[list[CopyStatus], msgspec.Meta(max_length=64)] = []
    nodes: Annotated[list[ClusterNode], msgspec.Meta(max_length=MAX_OBJECTS)] = []
    pods: Annotated[list[ClusterPod], msgspec.Meta(max_length=MAX_OBJECTS)] = []
    slices: Annotated[list[ClusterSlice], msgspec.Meta(max_length=MAX_OBJECTS)] = []
    claims: Annotated[list[ClusterClaim], msgspec.Meta(max_length=MAX_OBJECTS)] = []
    vmis: Annotated[list[ClusterVmi], msgspec.Meta(max_length=MAX_OBJECTS)] = []
    removed: Annotated[list[RemovedObject], msgspec.Meta(max_length=MAX_OBJECTS)] = []


class WireBatch(msgspec.Struct, array_like=True):
    """Batch in columns.

    Attributes:
        version: format version in which it was received or is to be encoded.
        catalogue: version of the catalogue that its names are from.
        cluster, sender, epoch, seq, sent_at, heartbeat: as in `Batch`.
        machines: evidence of each machine in the batch.
        views: devices in the batch (a view's key is unique only within its machine).
        absences: sets of absences, each sorted by metric, without duplicates.
        samples, dims, parts: measurements and everything else.
        cluster_part: objects of the Kubernetes API, from the collector of a cluster.
    """

    version: int
    catalogue: int
    cluster: Name
    sender: Name
    epoch: Annotated[str, msgspec.Meta(min_length=32, max_length=32)]
    seq: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    sent_at: Instant
    heartbeat: Heartbeat | None = None
    machines: list[Machine] = []
    views: list[View] = []
    absences: list[list[WireAbsence]] = []
    samples: list[SampleBlock] = []
    dims: list[DimBlock] = []
    parts: list[MachinePart] = []
    cluster_part: ClusterPart | None = None


class MachineReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """New data of a machine since the previous report.

    Attributes:
        machine: identity evidence.
        samples, events, readers, holdings: the data.
        inventory: the whole list of display controllers, or None if it is not part of this report.
        device_holders: the holder states of all devices, or None if they are not part of this report.
        unresolved: unresolved device names by source; only with `device_holders`.
    """

    machine: Machine
    samples: tuple[Sample, ...] = ()
    events: tuple[Event, ...] = ()
    readers: tuple[ReaderStatus, ...] = ()
    holdings: tuple[Holding, ...] = ()
    inventory: tuple[PciFunction, ...] | None = None
    device_holders: tuple[DeviceState, ...] | None = None
    unresolved: tuple[UnresolvedCount, ...] = ()


class Batch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Batch as records: a single post of a sender.

    Attributes:
        cluster: id of the cluster the sender belongs to.
        sender: name of the sender, unique in its cluster.
        epoch: 32 random hexadecimal digits, created with the sender's spool: a wiped spool is a new epoch.
        seq: 1, 2, 3, ... within the epoch; a gap is a loss.
        sent_at: nanoseconds since 1970 when the batch was created.
        heartbeat: state of the sender, on the heartbeat's own schedule.
        reports: one per machine.
        cluster_part: objects of the Kubernetes API, from the collector of a cluster.
    """

    cluster: str
    sender: str
    epoch: str
    seq: int
    sent_at: int
    heartbeat: Heartbeat | None = None
    reports: tuple[MachineReport, ...] = ()
    cluster_part: ClusterPart | None = None


_T = TypeVar("_T")


class MetricListCache(Generic[_T]):
    """Cache of an object per distinct list of metrics.

    Many blocks share a list object of names. Such a list is looked up by identity, without reading the names. A block
    must therefore live, and keep its list, for as long as the cache.
    """

    def __init__(self, make: Callable[[tuple[str, ...]], _T]) -> None:
        """Take the function that creates the object for a tuple of metric names."""
        self._make = make
        self._by_names: dict[tuple[str, ...], _T] = {}
        self._by_list: dict[int, _T] = {}

    def of(self, block: SampleBlock) -> _T:
        """Return the object for the block's metrics."""
        found = self._by_list.get(id(block.metrics))
        if found is not None:
            return found
        names = tuple(block.metrics)
        found = self._by_names.get(names)
        if found is None:
            found = self._by_names[names] = self._make(names)
        self._by_list[id(block.metrics)] = found
        return found

    def all(self) -> Iterable[_T]:
        """Return all objects, in the order of creation."""
        return self._by_names.values()
