"""What goes into the store and what comes out of it.

A series of another system: a name and labels, before anything of ours is known of it.
"""

import msgspec

from gpufleet.model.process import Process
from gpufleet.model.reading import Provenance, Sample, Value
from gpufleet.model.stored.retention import Resolution
from gpufleet.model.wire.batch import WireBatch


class Accepted(msgspec.Struct, kw_only=True):
    """A batch that was authenticated, acknowledged and normalised: values checked, machines known.

    Attributes:
        received_at: nanoseconds since 1970 by the hub's clock when its body was complete.
        reported_at: its place in the order of reports of one sender, by the hub's clock: about `received_at`, and for
            backlog earlier than everything that its sender said later. Of two reports the later one stands.
        machine_ids: the hub's id of each of `batch.machines`, in that order.
        batch: the columns; every value valid for its catalogue row or absent.
    """

    received_at: int
    reported_at: int
    machine_ids: tuple[str, ...]
    batch: WireBatch


class StoredSample(msgspec.Struct, frozen=True, kw_only=True):
    """The newest sample of one view, reader and lane, as the store kept it.

    Attributes:
        sample: with info texts among its values and its dimensions.
        received_at: nanoseconds since 1970 by the hub's clock.
    """

    sample: Sample
    received_at: int


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How it stands with the newest sample of one view, reader and lane.

    Attributes:
        stored: the sample, without its values and dimensions.
        tells: whether it has a number of a metric that totals are made of.
    """

    stored: StoredSample
    tells: bool


class KnownGpus(msgspec.Struct, frozen=True, kw_only=True):
    """How many GPUs the machines of a cluster have.

    Attributes:
        pci: NVIDIA's display and 3D controllers on their buses, without virtual functions; None where no machine told
            of its buses.
        nvml: views of kind gpu that each machine told of within 20 minutes before it last told of any.
    """

    pci: int | None
    nvml: int


class EventSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Whose events, and when.

    Attributes:
        cluster, machine: of this cluster and machine (the hub's id); None for every one.
        views: of these views only (keys); None for every one and the machine itself.
        start, end: nanoseconds since 1970, `end` excluded.
    """

    cluster: str | None = None
    machine: str | None = None
    views: frozenset[str] | None = None
    start: int
    end: int


class EventQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Which events, the newest first.

    Attributes:
        spans: an event is asked for if it is in one of them.
        view: only of this view (key); an empty text is the machine itself.
        kinds, codes: only of these; empty for every one.
        before: only after this one in the answer's order (time, id): where the page before ended.
        limit: most events.
    """

    spans: tuple[EventSpan, ...]
    view: str | None = None
    kinds: tuple[str, ...] = ()
    codes: tuple[int, ...] = ()
    before: tuple[int, int] | None = None
    limit: int


class StoredEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event as the store kept it.

    Attributes:
        id: number made of everything that names the event; one that was written twice has one id.
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


class ProcessQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Whose processes, and when.

    Attributes:
        cluster, machine: the hub's ids.
        view: only of this view (key); None for every one.
        start, end: a list counts that was read within; nanoseconds since 1970, `end` excluded.
    """

    cluster: str
    machine: str
    view: str | None = None
    start: int
    end: int


class StoredProcesses(msgspec.Struct, frozen=True, kw_only=True):
    """Who used one view at an instant, as the store kept it.

    Attributes:
        view: its key.
        reader, provenance: who read it.
        measured_at: nanoseconds since 1970, when it was read.
        received_at: nanoseconds since 1970 by the hub's clock.
        total: processes that there were; more than are listed where the sender cut the list.
        processes: those that are listed.
    """

    view: str
    reader: str
    provenance: Provenance
    measured_at: int
    received_at: int
    total: int
    processes: tuple[Process, ...]


class RolledHour(msgspec.Struct, frozen=True, kw_only=True):
    """An hour that minutes and hours were made of.

    Attributes:
        start: nanoseconds since 1970.
        machines: that had something measured in it or close by.
        seconds: how long it took.
        again: whether it had been made before: something that was measured in it came later.
    """

    start: int
    machines: int
    seconds: float
    again: bool


class StoredSeries(msgspec.Struct, frozen=True, kw_only=True):
    """Values over time.

    Attributes:
        points: (view key, metric) to (start of step, value).
        resolution: the coarsest of what it was made of.
    """

    points: dict[tuple[str | None, str], list[tuple[int, Value]]]
    resolution: Resolution


FORWARDED = "forwarded_by"
"""A label of series that a hub has passed on to a database: no hub takes them in again."""


class Series:
    """One series. A decoder gives the same object for the same series of later bodies of one source.

    Attributes:
        name: of the metric.
        labels: in the order in which they came; control characters are taken out.
        mark: the decoder's own note.
        meaning: a reader's own note: what it found the series to mean, which its values do not change.
    """

    __slots__ = ("labels", "mark", "meaning", "name")

    def __init__(self, name: str, labels: dict[str, str]) -> None:
        self.name = name
        self.labels = labels
        self.mark = 0
        self.meaning: object = None

    def __repr__(self) -> str:
        """Show it as the text format writes it."""
        return self.name + "{" + ",".join(f"{name}={value!r}" for name, value in self.labels.items()) + "}"
