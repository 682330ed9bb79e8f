"""Readings: values measured at an instant, or absences with a reason. Samples and rounds of readers."""

import datetime as dt
import enum

import msgspec

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue.metric import Lane
from gpufleet.model.event import Event
from gpufleet.model.machine import Machine, PciFunction
from gpufleet.model.process import Process
from gpufleet.model.view import Scope, View


class Provenance(enum.StrEnum):
    """Source of the values of an answer; the `source` field of the allocation contract."""

    HOST_LOCAL_PROBE = "host_local_probe"  # gpufleet on the machine itself
    HOST_NETDATA = "host_netdata"  # the operator's Netdata: fallback for bare metal, never for a guest
    SLICE_GUEST = "slice_guest"  # read from inside the guest
    SLICE_VGPU_HOST = "slice_vgpu_host"  # the guest does not report; the host sees that very vGPU instance
    IMPORTED = "imported"  # another exporter's values
    UNAVAILABLE = "unavailable"  # no source measured; a reason is given


Value = int | float | str
"""A measured value: integer, float, or text (the name of a state, or an info text)."""


class DimValue(msgspec.Struct, frozen=True, gc=False):
    """Value of a metric with dimensions (CPU core, port, mount point).

    Attributes:
        metric: name in the catalogue.
        labels: the values of the catalogue row's `dims`, in that order.
        value: as in `Sample.values`.
    """

    metric: str
    labels: tuple[str, ...]
    value: Value | Absent


class Sample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Readings of one subject from one pass of one lane of one reader: the unit of transfer.

    Attributes:
        view: the device, or None for the machine itself.
        reader: name of the reader, such as `nvml` or `host`.
        lane: schedule. A metric belongs to exactly one lane.
        measured_at: nanoseconds since 1970 UTC, taken when the last value was read. Together with
            view, reader and lane it identifies the sample, so that replayed samples collapse.
        values: catalogue name to value or absence, for metrics without dimensions. It has every metric
            that the reader covers on this lane.
        dims: values of metrics with dimensions.
        provenance: source of the values.
        driver_session: identity of the driver load or boot that counters start at; a new number means
            that counters were reset. 0 if there is none.
        processes: processes on the view; None if the reader does not list them, or does not repeat them.
    """

    view: View | None
    reader: str
    lane: Lane
    measured_at: int
    values: dict[str, Value | Absent]
    dims: tuple[DimValue, ...] = ()
    provenance: Provenance = Provenance.HOST_LOCAL_PROBE
    driver_session: int = 0
    processes: tuple[Process, ...] | None = None


READER_PRECEDENCE = ("host", "nvml", "dcgm", "nvidia_smi", "netdata")
"""Precedence of readers of the same subject, the most trusted first; other readers follow by name."""


def reader_rank(reader: str) -> tuple[int, str]:
    """Sort key of readers of one subject, the most trusted first."""
    rank = READER_PRECEDENCE.index(reader) if reader in READER_PRECEDENCE else len(READER_PRECEDENCE)
    return rank, reader


def precedence(sample: Sample) -> tuple[bool, tuple[int, str]]:
    """Sort key of samples of one subject, the most trusted first; imported samples come last."""
    return sample.provenance is Provenance.IMPORTED, reader_rank(sample.reader)


class Reading(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Reading in documents and responses; exactly one of `value` and `absent` is set.

    Attributes:
        value: measured value in the catalogue's unit.
        absent: reason of the absence.
        detail: adds to `absent`.
        scope: subject of the reading; own by default.
        reader: name of the reader.
        side: side of the view, if a response joins several.
        measured_at: time of measurement (or of the absence).
        received_at: time of receipt; only in a hub's responses.
        age_seconds: by the hub's clock on receipt; only in a hub's responses.
        last_known: value of the last measurement, `age_seconds` old, not a current value; only in a hub's responses
            about guests that do not report.
    """

    value: Value | None = None
    absent: Reason | None = None
    detail: str = ""
    scope: Scope = Scope.OWN
    reader: str = ""
    side: str = ""
    measured_at: dt.datetime | None = None
    received_at: dt.datetime | None = None
    age_seconds: float | None = None
    last_known: Value | None = None


class DimReading(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Reading of a metric with dimensions in documents and responses.

    Attributes:
        metric: name in the catalogue.
        labels: dimension name to value.
        value, absent, detail, scope, reader, measured_at: as in `Reading`.
    """

    metric: str
    labels: dict[str, str]
    value: Value | None = None
    absent: Reason | None = None
    detail: str = ""
    scope: Scope = Scope.OWN
    reader: str = ""
    measured_at: dt.datetime | None = None


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one pass of one lane of one reader.

    Attributes:
        samples: one per subject, complete for the lane: a device of an earlier round that is missing here is gone.
        events: events since the previous pass.
        inventory: the PCI display controllers, if this reader lists them.
        machine: evidence of the machine's identity, if this reader reads it.
        errors: messages of failures that left part of the pass without values; the agent shows the first
            as `last_error` and calls the pass partial.
        age_seconds: time since the source was queried, if an earlier pass queried it; 0 for the current pass.
    """

    samples: tuple[Sample, ...] = ()
    events: tuple[Event, ...] = ()
    inventory: tuple[PciFunction, ...] | None = None
    machine: Machine | None = None
    errors: tuple[str, ...] = ()
    age_seconds: float = 0.0


def value_of(reading: Reading | DimReading) -> Value | Absent:
    """Return the value of a reading, or its absence."""
    if reading.value is not None:
        return reading.value
    return Absent(reading.absent or Reason.NOT_REPORTED, reading.detail)


def dim_value_of(reading: DimReading) -> DimValue:
    """Return a reading of a metric with dimensions as a sample has it."""
    return DimValue(reading.metric, tuple(reading.labels.values()), value_of(reading))
