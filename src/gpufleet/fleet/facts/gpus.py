"""GPUs of a cluster, by the rows of the store: which are present, and which duplicate another one. Pure."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from gpufleet.fleet.devices import GpuListing, duplicate_gpus
from gpufleet.fleet.facts.metrics import DEVICE_METRICS, DEVICE_TEXTS, GPU_ADDRESS, STATE
from gpufleet.fleet.facts.newest import NETDATA_READER, NONE, MergedReadings, reason_of, rows_with_readings
from gpufleet.fleet.readings import MEASURING_LANES
from gpufleet.fleet.rules.logic import Column
from gpufleet.fleet.slot_keys import REPORT_WINDOW_SECONDS, KeyReport, slot_keys
from gpufleet.model.absence import Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.machine import PCI_READER
from gpufleet.model.stored.readings import NewestColumns
from gpufleet.model.time import NANOS
from gpufleet.model.view import SLOT_PREFIX, Side, View, ViewKind

INDEX_KEY = View(kind=ViewKind.GPU, side=Side.HOST, instance="").key
"""Prefix of the view key of a GPU that is identified only by its index."""

_UUID, _PCI, _INDEX = range(3)


class ClusterGpus(msgspec.Struct, frozen=True):
    """GPUs of a cluster as rows of the store identify them.

    Attributes:
        machine: position of each GPU's machine in `NewestColumns.machines`.
        keys: view key of each GPU.
        readings: readings of the GPUs, without those of the PCI bus.
        is_current: whether a reader, other than the PCI bus, has a current sample of the GPU's use or condition.
        is_own: whether a reader that imports nothing has one.
        is_listed: whether such a reader other than Netdata has one: the driver lists the GPU.
        bus_reason: number of the reason why only the PCI bus shows the GPU, 0 if it is not listed so. A listing counts
            until the GPU is gone: buses are listed less often than values are read.
        slot: slot of the GPU in the cluster: equal for keys of one slot of a machine; `NONE` if unknown.
        received_at: newest receipt of a sample of the GPU, 0 if only the PCI bus shows it.
        value_at: newest receipt of a sample of its use or condition, 0 if there is none.
        retired: whether the GPU is gone, or duplicates another one.
        is_replaced: whether another GPU, or another key of it, is in its slot now, and its last report is recent.
        replaced_at: newest receipt of a sample of another GPU in its slot, 0 if there never was one; `NONE` if the slot
            is unknown.
        others_until: newest measurement of another GPU in its slot, likewise; at most its receipt.
        stands_for: position of the GPU that each key stands for: the one that is in its slot now, or its own.
        addresses: PCI address to its position; the number of a slot is its machine's position times the number of
            addresses, plus the position of its address.
        is_uuid: whether the key of each GPU is a UUID.
    """

    machine: Column
    keys: list[str]
    readings: MergedReadings
    is_current: Column
    is_own: Column
    is_listed: Column
    bus_reason: Column
    slot: Column
    received_at: Column
    value_at: Column
    retired: Column
    is_replaced: Column
    replaced_at: Column
    others_until: Column
    stands_for: Column
    addresses: Mapping[str, int]
    is_uuid: Column


class GpuIndex:
    """Positions of GPUs by machine and view key, by `ClusterGpus.stands_for`."""

    def __init__(self, gpus: ClusterGpus, machines: Sequence[str]) -> None:
        """Take the GPUs of a cluster, and its machines as in `NewestColumns`."""
        self._machines = machines
        self._gpus = gpus
        names = [machines[place] for place in gpus.machine.tolist()]
        self._at = {f"{name}/{key}": at for at, (name, key) in enumerate(zip(names, gpus.keys, strict=True))}
        self._slots: dict[int, int] | None = None
        self._places: dict[str, int] = {}

    def find(self, machine: str, view: str) -> int | None:
        """Return the position of a GPU by machine id and view key, or None."""
        at = self._at.get(f"{machine}/{view}")
        if at is not None:
            return int(self._gpus.stands_for[at])
        return self._by_address(machine, view.removeprefix(SLOT_PREFIX)) if view.startswith(SLOT_PREFIX) else None

    def find_all(self, machines: Sequence[str], views: Sequence[str]) -> Column:
        """Return the positions of GPUs, `NONE` for unknown ones."""
        found = [self._at.get(f"{name}/{view}", NONE) for name, view in zip(machines, views, strict=True)]
        places = np.append(self._gpus.stands_for, NONE)[np.array(found, np.int64)]
        for row in np.flatnonzero(places == NONE).tolist():
            places[row] = NONE if (at := self.find(machines[row], views[row])) is None else at
        return places

    def _by_address(self, machine: str, address: str) -> int | None:
        """Return the GPU at a PCI address. The index of slots is built on first use."""
        if self._slots is None:
            gpus = self._gpus
            present = np.flatnonzero((gpus.slot != NONE) & ~gpus.retired)
            self._slots = dict(zip(gpus.slot[present].tolist(), present.tolist(), strict=True))
            self._places = {name: place for place, name in enumerate(self._machines)}
        place = self._places.get(machine)
        if place is None or address not in self._gpus.addresses:
            return None
        return self._slots.get(place * len(self._gpus.addresses) + self._gpus.addresses[address])


def cluster_gpus(newest: NewestColumns, current: Column) -> ClusterGpus:
    """Return the GPUs of a cluster.

    Args:
        newest: rows of the cluster.
        current: result of `current_rows`.
    """
    rows = np.flatnonzero(np.array([key != "" for key in newest.views], bool)[newest.view])
    pairs = newest.machine[rows].astype(np.int64) * len(newest.views) + newest.view[rows]
    distinct, subject = np.unique(pairs, return_inverse=True)
    machine, view = np.divmod(distinct, max(1, len(newest.views)))
    keys = [newest.views[place] for place in view.tolist()]
    is_bus = np.array([name == PCI_READER for name in newest.readers], bool)[newest.reader[rows]]
    read, bus = rows[~is_bus], rows[is_bus]
    count = len(keys)
    readings = MergedReadings(newest, read, subject[~is_bus], count, current, DEVICE_TEXTS)
    listings = MergedReadings(newest, bus, subject[is_bus], count, np.ones(len(newest), bool), ())
    kind = np.array([_kind(key) for key in keys], np.uint8)
    slot, addresses = _slots(newest, readings, rows, subject, machine, keys, kind)
    of_unit, stands = _units(newest, rows, subject, is_bus, slot, keys, kind)
    if stands.any():
        is_about = (of_unit != NONE) & ~is_bus
        readings = MergedReadings(newest, rows[is_about], of_unit[is_about], count, current, DEVICE_TEXTS)
    every = np.ones(len(readings.rows), bool)
    received = readings.newest_of(newest.received_at, every)
    measured = readings.newest_of(newest.measured_at, every)
    listed = listings.newest_of(newest.received_at, np.ones(len(listings.rows), bool))
    measuring = np.array([Lane(name) in MEASURING_LANES for name in newest.lanes], bool)[newest.lane[readings.rows]]
    imported = np.asarray(newest.imported, bool)[readings.rows]
    own = readings.usable & measuring & ~imported
    is_netdata = np.array([name == NETDATA_READER for name in newest.readers], bool)[newest.reader[readings.rows]]
    is_current = readings.any_row(readings.usable & measuring)
    is_gone = _gone(machine, len(newest.machines), received, listed)
    reported = np.maximum(measured, listings.newest_of(newest.measured_at, np.ones(len(listings.rows), bool)))
    is_earlier = _shadowed(slot, stands, is_current, reported, kind == _UUID)
    shadowed = is_earlier | is_gone
    bus_reason = np.where((listed > 0) & ~is_gone, listings.reasons(STATE), 0)
    retired = shadowed | _unnamed_duplicates(readings, machine, keys, kind != _INDEX, bus_reason, shadowed)
    return ClusterGpus(
        machine=machine,
        keys=keys,
        readings=readings,
        is_current=is_current,
        is_own=readings.any_row(own),
        is_listed=readings.any_row(own & ~is_netdata),
        bus_reason=bus_reason,
        slot=slot,
        received_at=received,
        value_at=readings.newest_of(newest.received_at, measuring),
        retired=retired,
        is_replaced=is_earlier & ~is_gone & (received > 0),
        replaced_at=_replaced(slot, received, kind == _UUID),
        others_until=_replaced(slot, np.minimum(measured, received), kind == _UUID),
        stands_for=_stand_ins(slot, retired, measured, kind == _UUID),
        addresses=addresses,
        is_uuid=kind == _UUID,
    )


def _slots(
    newest: NewestColumns,
    readings: MergedReadings,
    rows: Column,
    subject: Column,
    machine: Column,
    keys: list[str],
    kind: Column,
) -> tuple[Column, dict[str, int]]:
    """Return the slot of each GPU, and the positions of the PCI addresses."""
    addresses = {text: place for place, text in enumerate(newest.addresses)}
    found = np.full(len(keys), NONE, np.int64)
    texts = readings.text(GPU_ADDRESS, current=False)
    places = [addresses.setdefault(text, len(addresses)) for text in readings.texts.texts]
    found = np.where(texts == NONE, found, np.array([*places, NONE], np.int64)[texts])
    if newest.address is not None:
        has_address = newest.address[rows] != NONE
        found[subject[has_address]] = newest.address[rows][has_address]
    for place in np.flatnonzero(kind == _PCI).tolist():
        found[place] = addresses.setdefault(keys[place].removeprefix(SLOT_PREFIX), len(addresses))
    return np.where(found == NONE, NONE, machine * max(1, len(addresses)) + found), addresses


def _units(
    newest: NewestColumns,
    rows: Column,
    subject: Column,
    is_bus: Column,
    slot: Column,
    keys: list[str],
    kind: Column,
) -> tuple[Column, Column]:
    """Return the GPU that each row is about, and whether each GPU stands by the rule of `fleet.readings.unit_in_slot`.

    `NONE` is a row about a former GPU of the slot under the key of the present one. Only slots that readers other than
    the PCI bus know by several keys are judged: in others, each row is about its subject, and no GPU stands.
    """
    is_read = np.zeros(len(keys), bool)
    is_read[subject[~is_bus]] = True
    shared = _shared(np.where(is_read & (kind != _INDEX), slot, NONE))
    found, stands = subject.copy(), np.zeros(len(keys), bool)
    judged = np.flatnonzero(np.isin(slot[subject], slot[shared]) & (kind[subject] != _INDEX)) if len(shared) else shared
    reads = dict(zip(judged.tolist(), rows_with_readings(newest, rows[judged]).tolist(), strict=True))
    of_slots: dict[int, list[int]] = {}
    for at in reads:
        of_slots.setdefault(int(slot[subject[at]]), []).append(at)
    for of_slot in of_slots.values():
        reports: dict[tuple[int, str], KeyReport] = {}
        for at in of_slot:
            gpu, row, reader = int(subject[at]), rows[at], newest.readers[newest.reader[rows[at]]]
            order = int(newest.measured_at[row]), reads[at], int(newest.received_at[row])
            report = KeyReport(keys[gpu], kind[gpu] == _UUID, reader, bool(is_bus[at]), *order)
            reports[gpu, reader] = max(report, reports.get((gpu, reader), report))
        standing = slot_keys(reports.values())
        place = next(gpu for gpu, _ in reports if keys[gpu] == standing.key)
        stands[place] = True
        for at in of_slot:
            gpu, reader = int(subject[at]), newest.readers[newest.reader[rows[at]]]
            if (keys[gpu], reader) in standing.reports:
                found[at] = place
            elif gpu == place:
                found[at] = NONE
    return found, stands


def _gone(machine: Column, machines: int, received: Column, listed: Column) -> Column:
    """Return whether each GPU was last reported long before its machine's newest report of a GPU."""
    newest_report, newest_listing = np.zeros(machines, np.int64), np.zeros(machines, np.int64)
    np.maximum.at(newest_report, machine, received)
    np.maximum.at(newest_listing, machine, np.maximum(received, listed))
    window = REPORT_WINDOW_SECONDS * NANOS
    unread = newest_report[machine] - received > window
    unlisted = newest_listing[machine] - listed > window
    return unread & unlisted


def _shadowed(slot: Column, stands: Column, is_current: Column, reported: Column, is_uuid: Column) -> Column:
    """Return whether each GPU is an earlier key, or an earlier GPU, of a slot.

    The key that `_units` chose stands. In other slots, a key with current readings stands; of several, or if none has
    any, the one that was measured or listed last; in a tie, the key with a UUID.
    """
    shadowed = np.zeros(len(slot), bool)
    shared = _shared(slot)
    order = shared[np.lexsort((is_uuid[shared], reported[shared], is_current[shared], stands[shared], slot[shared]))]
    shadowed[order[:-1][slot[order[:-1]] == slot[order[1:]]]] = True
    return shadowed


def _replaced(slot: Column, reported: Column, is_uuid: Column) -> Column:
    """Return when another GPU with a UUID was last reported in the slot of each GPU, by the times of their reports."""
    found = np.where(slot == NONE, NONE, np.int64(0))
    shared = _shared(np.where(is_uuid, slot, NONE))
    order = shared[np.lexsort((reported[shared], slot[shared]))]
    same = slot[order[:-1]] == slot[order[1:]]
    found[order[1:][same]] = reported[order[:-1][same]]
    return found


def _stand_ins(slot: Column, retired: Column, measured: Column, is_uuid: Column) -> Column:
    """Return the position of the GPU that each key stands for.

    A key stands for the GPU in its slot. A UUID does so only while the UUID of that GPU is not known, and if it is the
    last one that was measured in the slot: otherwise it is the UUID of an earlier GPU.
    """
    found, shared = np.arange(len(slot)), _shared(slot)
    present = {int(slot[at]): at for at in shared.tolist() if not retired[at]}
    last = {int(slot[at]): at for at in shared[np.argsort(measured[shared], kind="stable")].tolist() if is_uuid[at]}
    for at in shared.tolist():
        place = present.get(int(slot[at]), at)
        if not is_uuid[at] or (not is_uuid[place] and last[int(slot[at])] == at):
            found[at] = place
    return found


def _shared(slot: Column) -> Column:
    """Return the GPUs whose slot another key has, too."""
    known = np.flatnonzero(slot != NONE)
    _, inverse, counts = np.unique(slot[known], return_inverse=True, return_counts=True)
    return known[counts[inverse] > 1]


def _unnamed_duplicates(
    readings: MergedReadings,
    machine: Column,
    keys: list[str],
    named: Column,
    bus_reason: Column,
    shadowed: Column,
) -> Column:
    """Return whether `duplicate_gpus` hides each GPU, on machines with both named and unnamed GPUs."""
    hidden = np.zeros(len(keys), bool)
    present = ~shadowed
    mixed = np.intersect1d(machine[present & named], machine[present & ~named])
    if not len(mixed):
        return hidden
    has_value = readings.has_value(DEVICE_METRICS)
    states = np.where(bus_reason > 0, bus_reason, readings.reasons(STATE))
    order = np.flatnonzero(present & np.isin(machine, mixed))
    for gpus in np.split(order, np.flatnonzero(np.diff(machine[order])) + 1):
        listings = [
            GpuListing(keys[at], not named[at], None if has_value[at] else reason_of(states[at]) or Reason.NOT_REPORTED)
            for at in gpus.tolist()
        ]
        duplicates = duplicate_gpus(listings)
        hidden[[at for at in gpus.tolist() if keys[at] in duplicates]] = True
    return hidden


def _kind(key: str) -> int:
    if not key.startswith((SLOT_PREFIX, INDEX_KEY)):
        return _UUID
    return _PCI if key.startswith(SLOT_PREFIX) else _INDEX
