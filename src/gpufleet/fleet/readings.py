"""Stored samples as readings: one a metric, from the reader that comes first, stale ones absent. Pure.

How old a sample may be before it is no longer current.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from gpufleet.fleet.devices import Shown, device_name, is_gone, left_out
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.api.answer import AnswerDevice
from gpufleet.model.catalogue import CATALOGUE, Lane
from gpufleet.model.reading import DimReading, Reading, Sample, Value, precedence
from gpufleet.model.status import ReaderStatus
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.model.view import Side, View, ViewKind

MISSED_PASSES = 3
"""Passes of a lane that may be missed before its values are stale."""

LONGEST_SECONDS = 3600.0
"""However slow a sender says its lane is, nothing older is current."""

LANE_SECONDS = {Lane.FAST: 10.0, Lane.SLOW: 60.0, Lane.STATIC: 600.0, Lane.EVENT: 10.0}
"""Intervals of lanes whose reader has not said its own."""


class Freshness:
    """Judges samples of one machine by the hub's clock on receipt."""

    def __init__(self, now: int, stale_after_seconds: float, readers: Sequence[ReaderStatus]) -> None:
        self._now = now
        self._stale_after = stale_after_seconds
        self._intervals = {(one.reader, one.lane): one.interval_seconds for one in readers}

    def age_seconds(self, received_at: int) -> float:
        """Return seconds since receipt; a clock that was stepped back gives 0."""
        return max(0, self._now - received_at) / NANOS

    def is_heard(self, received_at: int) -> bool:
        """Tell whether something received then shows that its machine is heard of now."""
        return not self._is_ahead(received_at) and self.age_seconds(received_at) <= self._stale_after

    def is_current(self, stored: StoredSample) -> bool:
        """Tell whether the sample's values are current, by the interval of its lane."""
        sample = stored.sample
        passes = MISSED_PASSES * self.interval_of(sample)
        limit = min(max(self._stale_after, passes), max(LONGEST_SECONDS, self._stale_after))
        return not self._is_ahead(stored.received_at) and self.age_seconds(stored.received_at) <= limit

    def interval_of(self, sample: Sample) -> float:
        """Return how often the lane of a sample is read, in seconds."""
        return self._intervals.get((sample.reader, sample.lane), LANE_SECONDS[sample.lane])

    def _is_ahead(self, received_at: int) -> bool:
        """Tell whether it was received before the hub's clock was set back: its age is not known."""
        return received_at - self._now > self._stale_after * NANOS


def merge(samples: Sequence[StoredSample], freshness: Freshness) -> dict[str, Reading]:
    """Return one reading a metric, in the catalogue's order: the first reader's value, else the first one's absence."""
    merged: dict[str, Reading] = {}
    for stored in sorted(samples, key=lambda stored: precedence(stored.sample)):
        reading_of = _readings(stored, freshness)
        for metric, value in stored.sample.values.items():
            before = merged.get(metric)
            if before is not None and before.absent is None:
                continue
            reading = reading_of(value)
            if before is None or reading.absent is None:
                merged[metric] = reading
    return {metric: merged[metric] for metric in CATALOGUE if metric in merged}


def merge_dimensions(samples: Sequence[StoredSample], freshness: Freshness) -> tuple[DimReading, ...]:
    """Return the readings of metrics with dimensions, each metric from the first current reader that has it.

    Stale ones are left out: a core, port or mount point that is no longer spoken of may be gone.
    """
    taken: dict[str, str] = {}
    merged: list[DimReading] = []
    for stored in sorted(samples, key=lambda stored: precedence(stored.sample)):
        if not freshness.is_current(stored):
            continue
        for dim in stored.sample.dims:
            if taken.setdefault(dim.metric, stored.sample.reader) != stored.sample.reader:
                continue
            metric = CATALOGUE.get(dim.metric)
            if metric is None:
                continue
            value, absent, detail = _split(dim.value)
            merged.append(
                DimReading(
                    metric=dim.metric,
                    labels=dict(zip(metric.dims, dim.labels, strict=False)),
                    value=value,
                    absent=absent,
                    detail=detail,
                    reader=stored.sample.reader,
                    measured_at=to_datetime(stored.sample.measured_at),
                )
            )
    return tuple(merged)


def devices(
    cluster: str, machine: str, samples: Sequence[StoredSample], freshness: Freshness
) -> tuple[AnswerDevice, ...]:
    """Put the samples of a machine's views together as devices, in the order of their addresses.

    A MIG device or vGPU instance that a newer pass over its GPU no longer found is not a device any more.
    """
    by_key = _by_view(samples)
    newest = _present(by_key)
    every = [_device(cluster, machine, newest[key], by_key[key], freshness) for key in newest]
    doubles = left_out(
        Shown.of(device.id, named=bool(device.uuid or device.pci_address), readings=device.readings)
        for device in every
        if device.kind is ViewKind.GPU
    )
    built = [device for device in every if device.id not in doubles]
    return tuple(sorted(built, key=lambda device: (device.pci_address or "~", device.kind, device.id)))


def device_views(samples: Sequence[StoredSample]) -> dict[str, View]:
    """Return the views of the devices that `devices` puts together, by their keys, and of those that it leaves out."""
    return _present(_by_view(samples))


def _present(by_key: Mapping[str, Sequence[StoredSample]]) -> dict[str, View]:
    gone = _gone(by_key)
    return _one_key_a_unit({key: of_view for key, of_view in by_key.items() if key not in gone})


def known_views(samples: Sequence[StoredSample]) -> dict[str, View]:
    """Return every view that was ever told of by its key, also those whose device has another key by now."""
    return {key: newest_view(of_view) for key, of_view in _by_view(samples).items()}


def present_keys(samples: Sequence[StoredSample]) -> frozenset[str]:
    """Return the keys of the views that the newest passes still found."""
    by_key = _by_view(samples)
    return frozenset(by_key) - _gone(by_key)


def _gone(by_key: Mapping[str, Sequence[StoredSample]]) -> frozenset[str]:
    """Return the keys of instances that are no more; by both clocks, since a pass may travel in two batches."""
    parents = {key: newest_view(of_view).parent for key, of_view in by_key.items()}
    cut = {key: parent for key, parent in parents.items() if parent is not None and parent in by_key}
    return frozenset(
        key
        for key, parent in cut.items()
        if is_gone(_received(by_key[key]), _received(by_key[parent]))
        and is_gone(_measured(by_key[key]), _measured(by_key[parent]))
    )


def _received(samples: Sequence[StoredSample]) -> dict[tuple[str, str], int]:
    return {(one.sample.reader, one.sample.lane): one.received_at for one in samples}


def _measured(samples: Sequence[StoredSample]) -> dict[tuple[str, str], int]:
    return {(one.sample.reader, one.sample.lane): one.sample.measured_at for one in samples}


def _by_view(samples: Sequence[StoredSample]) -> dict[str, list[StoredSample]]:
    by_key: dict[str, list[StoredSample]] = {}
    for stored in samples:
        if stored.sample.view is not None:
            by_key.setdefault(stored.sample.view.key, []).append(stored)
    return by_key


def all_stale(readings: Mapping[str, Reading]) -> dict[str, Reading]:
    """Return the readings without a value: what a machine that fell silent said last is not what is."""
    return {
        metric: msgspec.structs.replace(reading, value=None, absent=Reason.STALE, detail="")
        for metric, reading in readings.items()
    }


def newest_view(samples: Sequence[StoredSample]) -> View:
    """Return the view as the newest sample describes it, with what only older ones knew filled in."""
    ordered = sorted(samples, key=lambda stored: (stored.received_at, stored.sample.measured_at))
    merged: View | None = None
    for stored in ordered:
        view = stored.sample.view
        assert view is not None
        if merged is not None:
            view = msgspec.structs.replace(
                view,
                pci_address=view.pci_address or merged.pci_address,
                parent=view.parent or merged.parent,
                uuid=view.uuid or merged.uuid,
            )
        merged = view
    assert merged is not None
    return merged


def _one_key_a_unit(by_key: Mapping[str, Sequence[StoredSample]]) -> dict[str, View]:
    """Choose one key per physical unit of the host: a GPU known by address first has a UUID after its driver loads.

    The key that was heard of last stands; a tie goes to the one with a UUID.
    """
    views = {key: newest_view(samples) for key, samples in by_key.items()}
    standing: dict[str, str] = {}
    for key, view in views.items():
        if view.kind is not ViewKind.GPU or view.side not in (Side.HOST, Side.PCI_ONLY) or not view.pci_address:
            continue
        other = standing.get(view.pci_address)
        if other is None or _heard(by_key[key], view) > _heard(by_key[other], views[other]):
            standing[view.pci_address] = key
    kept = set(standing.values())
    return {
        key: view
        for key, view in views.items()
        if key in kept
        or view.kind is not ViewKind.GPU
        or view.side not in (Side.HOST, Side.PCI_ONLY)
        or not view.pci_address
    }


def _heard(samples: Sequence[StoredSample], view: View) -> tuple[int, int, bool]:
    newest = max(samples, key=lambda stored: (stored.received_at, stored.sample.measured_at))
    return newest.received_at, newest.sample.measured_at, view.uuid is not None


def _device(
    cluster: str, machine: str, view: View, samples: Sequence[StoredSample], freshness: Freshness
) -> AnswerDevice:
    readings = merge(samples, freshness)
    first = min(samples, key=lambda stored: precedence(stored.sample))
    return AnswerDevice(
        id=f"{cluster}/{machine}/{view.key}",
        machine=machine,
        kind=view.kind,
        side=view.side,
        uuid=view.uuid,
        pci_address=view.pci_address,
        parent=view.parent,
        name=device_name(readings),
        source=first.sample.provenance,
        readings=readings,
        dimensions=merge_dimensions(samples, freshness),
    )


def _readings(stored: StoredSample, freshness: Freshness) -> Callable[[Value | Absent], Reading]:
    """Return what makes a reading of each of a sample's values: what all of them share is worked out once."""
    sample = stored.sample
    is_current = freshness.is_current(stored)
    side = sample.view.side if sample.view else "host"
    measured_at, received_at = to_datetime(sample.measured_at), to_datetime(stored.received_at)
    age = freshness.age_seconds(stored.received_at)

    def reading(given: Value | Absent) -> Reading:
        value, absent, detail = _split(given) if is_current else (None, Reason.STALE, "")
        return Reading(
            value=value,
            absent=absent,
            detail=detail,
            reader=sample.reader,
            side=side,
            measured_at=measured_at,
            received_at=received_at,
            age_seconds=age,
        )

    return reading


def _split(given: Value | Absent) -> tuple[Value | None, Reason | None, str]:
    if isinstance(given, Absent):
        return None, given.reason, given.detail
    return given, None, ""
