"""A reading: a value measured at an instant, or an absence with its reason.

Where an answer comes from: the `source` field of the allocation contract.

A round of a reader: what one pass gave.
"""

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
    """Who measured the values of an answer."""

    HOST_LOCAL_PROBE = "host_local_probe"  # gpufleet on the machine itself
    HOST_NETDATA = "host_netdata"  # the operator's Netdata: fallback for bare metal, never for a guest
    SLICE_GUEST = "slice_guest"  # read from inside the guest
    SLICE_VGPU_HOST = "slice_vgpu_host"  # the guest is silent; the host sees that very vGPU instance
    IMPORTED = "imported"  # another exporter's values
    UNAVAILABLE = "unavailable"  # nobody measured: a reason says why


Value = int | float | str
"""A measured value: integer, float, or text (the name of a state, or an info text)."""


class DimValue(msgspec.Struct, frozen=True, gc=False):
    """One value of a metric that has dimensions (a core, a port, a mount point).

    Attributes:
        metric: name in the catalogue.
        labels: the values of the catalogue row's `dims`, in that order.
        value: as in `Sample.values`.
    """

    metric: str
    labels: tuple[str, ...]
    value: Value | Absent


class Sample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one reader measured of one subject in one pass of one lane: the unit that travels.

    Attributes:
        view: the device, or None for the machine itself.
        reader: who read it, such as `nvml` or `host`.
        lane: the schedule it was read on. A metric belongs to exactly one lane.
        measured_at: nanoseconds since 1970 UTC, taken when the last value was read; identity of the
            sample together with view, reader and lane, so that a replay collapses.
        values: catalogue name to value or absence, for metrics without dimensions. Every metric the
            reader is responsible for on this lane is there: what is missing was not the reader's to give.
        dims: values of metrics with dimensions.
        provenance: who measured.
        driver_session: identity of the driver load or boot that counters count from; a new number means
            that counters started again. 0 where there is none.
        processes: who uses the view, or None where the reader does not list them, or they are not told again.
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
"""Whose word counts where several readers tell of one subject; readers that are not here come after, by name."""


def precedence(sample: Sample) -> tuple[bool, int, str]:
    """Sort key of samples of one subject, the most trusted first; imported ones come last."""
    rank = READER_PRECEDENCE.index(sample.reader) if sample.reader in READER_PRECEDENCE else len(READER_PRECEDENCE)
    return sample.provenance is Provenance.IMPORTED, rank, sample.reader


class Reading(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One reading as documents and answers show it: exactly one of `value` and `absent` is set.

    Attributes:
        value: the measured value in the catalogue's unit.
        absent: why there is none.
        detail: adds to `absent`.
        scope: what it is about; own unless told.
        reader: who read it.
        side: whose view it came from, where an answer joins several.
        measured_at: when it was measured (or found absent).
        received_at: when the hub received it; only in a hub's answers.
        age_seconds: by the hub's clock on receipt; only in a hub's answers.
        last_known: what the value was when it was last measured, as old as `age_seconds` says and no word of now; only
            in a hub's answers about guests that are not heard of.
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
    """A reading of a metric with dimensions, as documents show it.

    Attributes:
        metric: name in the catalogue.
        labels: dimension name to value.
        value, absent, detail, reader, measured_at: as in `Reading`.
    """

    metric: str
    labels: dict[str, str]
    value: Value | None = None
    absent: Reason | None = None
    detail: str = ""
    reader: str = ""
    measured_at: dt.datetime | None = None


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """What one pass of one lane of one reader gave.

    Attributes:
        samples: one a subject, complete for the lane: a device of an earlier round that is not here is gone.
        events: what happened since the pass before.
        inventory: the PCI display controllers, if this reader lists them.
        machine: evidence of the machine's identity, if this reader reads it.
        errors: words of failures that left part of the pass without values; the agent shows the first
            as `last_error` and calls the pass partial.
    """

    samples: tuple[Sample, ...] = ()
    events: tuple[Event, ...] = ()
    inventory: tuple[PciFunction, ...] | None = None
    machine: Machine | None = None
    errors: tuple[str, ...] = ()
