"""The batch as columns: as it travels and as it is stored, with machines, views and absences named once and pointed at.

Field order is the format: every struct is a MessagePack array. Fields may be added at the end, with a
default; nothing is ever removed or reordered within a version. The bounds in the types are part of the format.

What a sender posts to a hub, as records. Its bytes are `codecs/batch`'s business.

Blocks with the same metrics, brought together.
"""

from collections.abc import Callable, Iterable
from typing import Annotated, Generic, TypeVar

import msgspec

from gpufleet.model.absence import Reason
from gpufleet.model.event import Event
from gpufleet.model.holding import Holding
from gpufleet.model.machine import Machine, PciFunction
from gpufleet.model.reading import Sample
from gpufleet.model.status import Heartbeat, ReaderStatus
from gpufleet.model.view import View

WIRE_VERSION = 2
"""The newest version of the format; the first element of every batch."""

OLDEST_VERSION = 1
"""The oldest that is read, and that every hub reads."""

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
"""Name of a cluster, sender, reader or metric."""

Text = Annotated[str, msgspec.Meta(max_length=1024)]
"""A text that was measured, or that says more about an absence."""

Label = Annotated[str, msgspec.Meta(max_length=4096)]
"""A value of a dimension; mount points can be as long as a path."""

Instant = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
"""Nanoseconds since 1970."""

Index = Annotated[int, msgspec.Meta(ge=0)]
"""Position in one of the batch's lists."""

IndexOrNone = Annotated[int, msgspec.Meta(ge=-1)]
"""Position in one of the batch's lists, or -1 for none."""

ProcessId = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
"""As the driver tells it."""

Tick = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""Clock ticks since boot."""

ShortText = Annotated[str, msgspec.Meta(max_length=64)]
"""The kernel's name of a process."""

MAX_PROCESSES = 1024
"""Of one list."""

Cell = int | float | Text | None
"""A value in a column; None means absent, and the row's absence set says why."""


class WireAbsence(msgspec.Struct, frozen=True, array_like=True):
    """Why one metric of a row is absent."""

    metric: Name
    reason: Reason
    detail: Text = ""


class SampleBlock(msgspec.Struct, array_like=True):
    """Rows of samples that share reader, lane, provenance and metrics. All lists are of equal length.

    Attributes:
        reader, lane, provenance: of every row.
        metrics: catalogue names, one a column. Only metrics without dimensions.
        machine: row to index in `WireBatch.machines`.
        view: row to index in `WireBatch.views`, or -1 for the machine itself.
        measured_at: row to nanoseconds since 1970.
        driver_session: row to identity of the driver load, or 0.
        absence: row to index in `WireBatch.absences`, or -1 where nothing is absent.
        columns: one list a metric, in the order of `metrics`; a hub may have arrays in place of lists, or a `Matrix`.
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
    """Values of one metric that has dimensions. All lists are of equal length.

    Attributes:
        metric: catalogue name.
        reader, lane, provenance: of every row.
        machine, view, measured_at, driver_session: as in `SampleBlock`.
        labels: one list a dimension, in the catalogue's order.
        values: None where absent.
        absence: row to index in `WireBatch.absences` (a set of one), or -1.
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
    """Who uses one view at an instant. The lists from `pids` on, and every column, are of equal length.

    Attributes:
        view: index in `WireBatch.views`.
        reader, lane, provenance, measured_at, driver_session: of the sample that the list was read with.
        total: processes that there were; more than are listed where the list was cut.
        readings: names of `model.process.PROCESS_READINGS`, one a column.
        pids: process ids.
        start_times: clock ticks since boot, or None.
        kinds: what each holds.
        names: the kernel's short names, or empty texts.
        absence: process to index in `WireBatch.absences`, or -1 where nothing is absent.
        columns: one list a reading.
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
    """What is said of a machine beside its samples; `machine` is an index in `WireBatch.machines`."""

    machine: Index
    events: list[Event] = []
    readers: list[ReaderStatus] = []
    holdings: list[Holding] = []
    inventory: list[PciFunction] | None = None
    processes: list[ProcessList] = []


class WireBatch(msgspec.Struct, array_like=True):
    """One batch.

    Attributes:
        version: of the format that it came in, or is to be told in.
        catalogue: version of the catalogue its names are from.
        cluster, sender, epoch, seq, sent_at, heartbeat: as in `model.batch.Batch`.
        machines: evidence of each machine that is spoken of.
        views: devices that are spoken of (a view's key is unique within its machine only).
        absences: sets of absences, each sorted by metric, each once.
        samples, dims, parts: what was measured and learned.
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


class MachineReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was learned of one machine since the report before.

    Attributes:
        machine: evidence of which machine it is.
        samples, events, readers, holdings: what was learned.
        inventory: the whole list of display controllers, or None when it is not part of this report.
    """

    machine: Machine
    samples: tuple[Sample, ...] = ()
    events: tuple[Event, ...] = ()
    readers: tuple[ReaderStatus, ...] = ()
    holdings: tuple[Holding, ...] = ()
    inventory: tuple[PciFunction, ...] | None = None


class Batch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One post of one sender.

    Attributes:
        cluster: id of the cluster the sender belongs to.
        sender: name of the sender, unique in its cluster.
        epoch: 32 hexadecimal digits, random, made with the sender's spool: a wiped spool is a new epoch.
        seq: 1, 2, 3, ... within the epoch; a gap is a loss.
        sent_at: nanoseconds since 1970 when the batch was made.
        heartbeat: the sender's word that it lives, on the heartbeat's own schedule.
        reports: one a machine.
    """

    cluster: str
    sender: str
    epoch: str
    seq: int
    sent_at: int
    heartbeat: Heartbeat | None = None
    reports: tuple[MachineReport, ...] = ()


_T = TypeVar("_T")


class Shapes(Generic[_T]):
    """Something for each list of metrics that blocks have.

    Many blocks share one list object of names, which is found without a look at the names. So a block must live, and
    keep its list, for as long as this.
    """

    def __init__(self, make: Callable[[tuple[str, ...]], _T]) -> None:
        """Take what makes a new one for the names of a block's metrics."""
        self._make = make
        self._by_names: dict[tuple[str, ...], _T] = {}
        self._by_list: dict[int, _T] = {}

    def of(self, block: SampleBlock) -> _T:
        """Return what belongs to the block's metrics."""
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
        """Return everything, in the order of coming."""
        return self._by_names.values()
