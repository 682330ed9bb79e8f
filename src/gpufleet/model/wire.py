"""The batch as columns: as it travels and as it is stored, with machines, views and absences named once and pointed at.

Field order is the format: every struct is a MessagePack array. Fields may be added at the end, with a
default; nothing is ever removed or reordered within a version.
"""

import msgspec

from gpufleet.model.absence import Reason
from gpufleet.model.event import Event
from gpufleet.model.holding import Holding
from gpufleet.model.machine import Machine, PciFunction
from gpufleet.model.status import Heartbeat, ReaderStatus
from gpufleet.model.view import View

WIRE_VERSION = 1
"""Version of the format; the first element of every batch."""

Cell = int | float | str | None
"""A value in a column; None means absent, and the row's absence set says why."""


class WireAbsence(msgspec.Struct, frozen=True, array_like=True):
    """Why one metric of a row is absent."""

    metric: str
    reason: Reason
    detail: str = ""


class SampleBlock(msgspec.Struct, array_like=True):
    """Rows of samples that share reader, lane, provenance and metrics. All lists are of equal length.

    Attributes:
        reader, lane, provenance: of every row.
        metrics: catalogue names, one a column. Only metrics without dimensions.
        machine: row to index in `WireBatch.machines`.
        view: row to index in `WireBatch.views`, or -1 for the machine itself.
        measured_at: row to nanoseconds since 1970.
        driver_session: row to identity of the driver load.
        absence: row to index in `WireBatch.absences`, or -1 where nothing is absent.
        columns: one list a metric, in the order of `metrics`.
    """

    reader: str
    lane: str
    provenance: str
    metrics: list[str]
    machine: list[int]
    view: list[int]
    measured_at: list[int]
    driver_session: list[int]
    absence: list[int]
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

    metric: str
    reader: str
    lane: str
    provenance: str
    machine: list[int]
    view: list[int]
    measured_at: list[int]
    driver_session: list[int]
    labels: list[list[str]]
    values: list[Cell]
    absence: list[int]


class MachinePart(msgspec.Struct, array_like=True):
    """What is said of a machine beside its samples; `machine` is an index in `WireBatch.machines`."""

    machine: int
    events: list[Event] = []
    readers: list[ReaderStatus] = []
    holdings: list[Holding] = []
    inventory: list[PciFunction] | None = None


class WireBatch(msgspec.Struct, array_like=True):
    """One batch.

    Attributes:
        version: `WIRE_VERSION`.
        catalogue: version of the catalogue its names are from.
        cluster, sender, epoch, seq, sent_at, heartbeat: as in `model.batch.Batch`.
        machines: evidence of each machine that is spoken of.
        views: devices that are spoken of (a view's key is unique within its machine only).
        absences: sets of absences, each sorted by metric, each once.
        samples, dims, parts: what was measured and learned.
    """

    version: int
    catalogue: int
    cluster: str
    sender: str
    epoch: str
    seq: int
    sent_at: int
    heartbeat: Heartbeat | None = None
    machines: list[Machine] = []
    views: list[View] = []
    absences: list[list[WireAbsence]] = []
    samples: list[SampleBlock] = []
    dims: list[DimBlock] = []
    parts: list[MachinePart] = []
