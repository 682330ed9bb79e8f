"""Records written to the store and read from it, and series of other systems before they are mapped."""

import msgspec

from gpufleet.model.absence import Reason
from gpufleet.model.process import Process
from gpufleet.model.reading import Provenance, Sample, Value
from gpufleet.model.stored.retention import Resolution
from gpufleet.model.wire.batch import WireBatch


class AcceptedBatch(msgspec.Struct, kw_only=True):
    """Batch that was authenticated, acknowledged and normalised: values checked, machines known.

    Attributes:
        received_at: nanoseconds since 1970 by the hub's clock when its body was complete.
        reported_at: its place in the order of reports of a sender, by the hub's clock: about `received_at`, and for
            backlog earlier than all newer reports of the sender. Of two reports the later wins.
        machine_ids: the hub's id of each of `batch.machines`, in that order.
        batch: the columns; every value is valid for its catalogue row or absent.
    """

    received_at: int
    reported_at: int
    machine_ids: tuple[str, ...]
    batch: WireBatch


class StoredSample(msgspec.Struct, frozen=True, kw_only=True):
    """Newest stored sample of a view, reader and lane.

    Attributes:
        sample: with info texts among its values, and its dimensions.
        received_at: nanoseconds since 1970 by the hub's clock.
    """

    sample: Sample
    received_at: int


class SampleSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Newest sample of a view, reader and lane without its values.

    Attributes:
        stored: the sample, without values and dimensions.
        has_totals: whether it has a number of a metric that contributes to totals.
        is_lost: whether the state of the device is `lost`; None if it has no state.
    """

    stored: StoredSample
    has_totals: bool
    is_lost: bool | None = None


class KnownGpus(msgspec.Struct, frozen=True, kw_only=True):
    """Number of GPUs of the machines of a cluster.

    Attributes:
        pci: NVIDIA display and 3D controllers on the PCI buses, without virtual functions; None if no machine reported
            its buses.
        nvml: views of kind gpu reported within 20 minutes before their machine's last GPU report; None if no machine
            reported a GPU, and no driver reported that it has none.
    """

    pci: int | None
    nvml: int | None


class EventSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Scope of an event query: machine, views and interval.

    Attributes:
        cluster, machine: this cluster and machine (the hub's id); None for all.
        views: these views (keys); None for all, and the machine itself.
        start, end: nanoseconds since 1970, `end` excluded.
    """

    cluster: str | None = None
    machine: str | None = None
    views: frozenset[str] | None = None
    start: int
    end: int


class EventQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Query for events, newest first.

    Attributes:
        spans: an event matches if it is in any of them.
        view: only this view (key); an empty text is the machine itself.
        kinds, codes: only these; empty for all.
        before: only events that follow this (time, id) in the answer's order: the end of the previous page.
        limit: maximum number of events.
    """

    spans: tuple[EventSpan, ...]
    view: str | None = None
    kinds: tuple[str, ...] = ()
    codes: tuple[int, ...] = ()
    before: tuple[int, int] | None = None
    limit: int


class StoredEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Stored event.

    Attributes:
        id: hash of the fields that identify the event; an event that was written twice has one id.
        cluster, machine: the hub's ids.
        view: key of the view, or None for the machine.
        at, kind, code, attributes: as in `Event`.
        received_at: nanoseconds since 1970 by the hub's clock.
    """

    id: int
    cluster: str
    machine: str
    view: str | None
    at: int
    kind: str
    code: int
    attributes: dict[str, str]
    received_at: int


class ProcessQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Query for process lists.

    Attributes:
        cluster, machine: the hub's ids.
        view: only this view (key); None for all.
        start, end: only lists read in this interval; nanoseconds since 1970, `end` excluded.
    """

    cluster: str
    machine: str
    view: str | None = None
    start: int
    end: int


class StoredProcesses(msgspec.Struct, frozen=True, kw_only=True):
    """Stored process list of a view at an instant.

    Attributes:
        view: its key.
        reader, provenance: reader and source of the list.
        measured_at: nanoseconds since 1970 when it was read.
        received_at: nanoseconds since 1970 by the hub's clock.
        total: number of processes; more than are listed if the sender cut the list.
        processes: the listed processes.
    """

    view: str
    reader: str
    provenance: Provenance
    measured_at: int
    received_at: int
    total: int
    processes: tuple[Process, ...]


class HourRollup(msgspec.Struct, frozen=True, kw_only=True):
    """Result of building the rollups of an hour.

    Attributes:
        start: nanoseconds since 1970.
        subjects: number of views and machines with samples in the hour or close to it, by reader and lane.
        seconds: duration of the build.
        again: whether the hour was rebuilt because samples of it arrived late.
    """

    start: int
    subjects: int
    seconds: float
    again: bool


class StoredSeries(msgspec.Struct, frozen=True, kw_only=True):
    """Stored values over time.

    Attributes:
        points: (view key, metric) to (start of step, value). A series can have absences only.
        resolution: the coarsest one that contributed.
        absences: (view key, metric) of `points` to start of step to reason, for steps without a value in which the
            metric was read and absent. Samples that have expired give none.
    """

    points: dict[tuple[str | None, str], list[tuple[int, Value]]]
    resolution: Resolution
    absences: dict[tuple[str | None, str], dict[int, Reason]] = {}


FORWARDED = "forwarded_by"
"""Label of series that a hub forwarded to a database: a hub never imports them again."""


class ImportedSeries:
    """Series of another system: a name and labels, not yet mapped to the catalogue.

    A decoder returns the same object for the same series in later bodies of a source.

    Attributes:
        name: of the metric.
        labels: in the order of arrival, without control characters.
        mark: private to the decoder.
        meaning: private to the reader: the mapping of the series, which does not depend on its values.
        origin: private to the import: dialect, target and pod of the series, which do not depend on its values.
    """

    __slots__ = ("labels", "mark", "meaning", "name", "origin")

    def __init__(self, name: str, labels: dict[str, str]) -> None:
        self.name = name
        self.labels = labels
        self.mark = 0
        self.meaning: object = None
        self.origin: object = None

    def __repr__(self) -> str:
        """Return the series in Prometheus text notation."""
        return self.name + "{" + ",".join(f"{name}={value!r}" for name, value in self.labels.items()) + "}"
