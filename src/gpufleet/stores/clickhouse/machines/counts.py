"""In-memory counts of known and reporting GPUs by cluster, about 110 bytes per GPU.

Counting a million GPUs in three million rows takes the engine most of a second, and this module some milliseconds. The
state is arrays of numbers. GPUs and machines are identified by 64 bits, mixed from this process's salted hashes of
their names, which senders cannot choose: the probability of a collision among a million is below one in ten million.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

import msgspec
import numpy as np

from gpufleet.fleet.slot_keys import REPORT_WINDOW_SECONDS
from gpufleet.model.catalogue import CATALOGUE, Lane, Metric
from gpufleet.model.device_state import LOST
from gpufleet.model.machine import NVIDIA_VENDOR, PCI_READER
from gpufleet.model.reading import Provenance
from gpufleet.model.status import LANE_SECONDS, MISSED_PASSES
from gpufleet.model.stored.samples import KnownGpus
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.stores.clickhouse.samples.keys import dictionary_column
from gpufleet.stores.clickhouse.samples.newest_rows import ValueGroup
from gpufleet.stores.clickhouse.schema.columns import (
    NO_NUMBER,
    Columns,
    DictionaryColumn,
    IdIndex,
    IndexedColumn,
    NewestValues,
    NumericArray,
    dictionary_of,
    listed_cells,
    mix_hashes,
    text_hashes,
)
from gpufleet.stores.clickhouse.schema.tables import KNOWN_AT

GPU_KEY_PREFIX = f"{ViewKind.GPU}/"
"""Prefix of a GPU's view key."""

INDEX_KEY_PREFIX = View(kind=ViewKind.GPU, side=Side.HOST, instance="").key
"""Prefix of the view key of a GPU that is identified only by its index."""

STATE = CATALOGUE["gpu_state"]

LOST_STATE = STATE.states.index(LOST)
"""Stored number of the state."""

STATE_INTERVAL_SECONDS = LANE_SECONDS[Lane.SLOW]
"""Interval of states, whatever that of their reader is."""

NO_STATE_LANE, NO_STATE = -2, -1
"""Number of a row of a lane that never has a state, and of a row without a state."""

DRIVER_STATE, DRIVER_GPUS = CATALOGUE["nvidia_driver_state"], CATALOGUE["nvidia_devices"]

WITHOUT_GPUS = DRIVER_STATE.states.index("no_supported_gpu")
"""Stored number of the state of a driver that is loaded and reports no GPU. It may report no number of them either."""

NO_DRIVER_ROW, NO_DRIVER_GPUS = -2, -1
"""Number of GPUs of a row that is not about a driver, and of a driver that reports no number."""

_NEVER = 0
_NO_INVENTORY = -1
_NO_GPUS = -1


class GpuReports(msgspec.Struct, frozen=True):
    """Reports of views, in columns. Rows may be of any view, and several of one view.

    Attributes:
        cluster, machine, view: the subject of each row; texts may be duplicated.
        known_at: places in the order of reports.
        value_at: receipt of a number, in nanoseconds since 1970; 0 if there is none.
        seen_at: receipt of any report by a driver; 0 if the reader is not a driver.
        stated_at: receipt of a state; 0 if there is none.
        state: reported state by its stored number, or `NO_STATE` or `NO_STATE_LANE`.
        driver_gpus: number of GPUs that the driver of the machine reports, or `NO_DRIVER_GPUS` or `NO_DRIVER_ROW`.
        reader, provenance: reader of the row, and source of its values.
    """

    cluster: DictionaryColumn | IndexedColumn
    machine: DictionaryColumn | IndexedColumn
    view: DictionaryColumn | IndexedColumn
    known_at: NumericArray
    value_at: NumericArray
    seen_at: NumericArray
    stated_at: NumericArray
    state: NumericArray
    driver_gpus: NumericArray
    reader: DictionaryColumn
    provenance: DictionaryColumn

    @classmethod
    def of(
        cls,
        *,
        cluster: DictionaryColumn,
        machine: DictionaryColumn,
        view: DictionaryColumn | IndexedColumn,
        reader: DictionaryColumn,
        lane: DictionaryColumn,
        provenance: DictionaryColumn,
        known_at: NumericArray,
        received_at: NumericArray,
        has_totals: NumericArray,
        state: NumericArray,
        driver_gpus: NumericArray,
    ) -> Self:
        """Return the reports of rows of the table `latest`, with their states."""
        is_drivers = _flags([name != PCI_READER for name in reader.texts], reader)
        has_state_lane = _flags([name == STATE.lane for name in lane.texts], lane)
        return cls(
            cluster=cluster,
            machine=machine,
            view=view,
            known_at=known_at,
            value_at=np.where(has_totals, received_at, _NEVER),
            seen_at=np.where(is_drivers, received_at, _NEVER),
            stated_at=np.where(has_state_lane & (state != NO_STATE), received_at, _NEVER),
            state=np.where(has_state_lane, state, NO_STATE_LANE),
            driver_gpus=driver_gpus,
            reader=reader,
            provenance=provenance,
        )


class BusReports(msgspec.Struct, frozen=True):
    """Numbers of GPUs on the PCI buses of machines, in columns; `reported_at` is the place in the order of reports."""

    cluster: DictionaryColumn
    machine: DictionaryColumn
    gpus: NumericArray
    reported_at: NumericArray


class _ReportedStates:
    """Newest state of each GPU by each reader, by the rule of `fleet.readings.deciding_state`. Not thread-safe.

    A newer row of the state's lane without a state ends the state of its reader. The interval of a reader is not known
    here: that of a slow one is taken.
    """

    def __init__(self) -> None:
        self._readers = IdIndex()  # of GPU and reader
        self._gpu_of = np.empty(0, np.int32)
        self._is_imported = np.empty(0, np.bool_)
        self._state = NewestValues(NO_STATE)
        self._stated_at = NewestValues(_NEVER)

    def add(self, rows: GpuReports, of_rows: NumericArray, gpus: NumericArray) -> None:
        """Add the states of rows in the order of reports; `gpus` are those of `of_rows`."""
        in_lane = np.flatnonzero(rows.state[of_rows] != NO_STATE_LANE)
        of_rows, gpus = of_rows[in_lane], gpus[in_lane]
        names = mix_hashes(text_hashes(rows.reader)[of_rows], gpus.astype(np.int64))
        readers, firsts = self._readers.assign(names)
        if len(firsts):
            imported = _flags([name == Provenance.IMPORTED for name in rows.provenance.texts], rows.provenance)
            self._gpu_of = np.concatenate([self._gpu_of, gpus[firsts].astype(np.int32)])
            self._is_imported = np.concatenate([self._is_imported, imported[of_rows[firsts]]])
            self._state.grow(len(firsts))
            self._stated_at.grow(len(firsts))
        self._state.update(readers, rows.known_at[of_rows], rows.state[of_rows])
        self._stated_at.update(readers, rows.known_at[of_rows], rows.stated_at[of_rows])

    def lost(self, count: int, since: int, until: int) -> NumericArray:
        """Return whether each of so many GPUs is lost, by the states that were received in the interval."""
        at, is_lost = self._stated_at.cells, self._state.cells == LOST_STATE
        is_current = (at >= since) & (at <= until)
        of_lost = _marked(count, self._gpu_of[is_current & is_lost])
        counted = np.flatnonzero(is_current & of_lost[self._gpu_of])
        has_own = _marked(count, self._gpu_of[counted[~self._is_imported[counted]]])
        counted = counted[~(self._is_imported[counted] & has_own[self._gpu_of[counted]])]
        gpus, known_at = self._gpu_of[counted], self._state.ranks[counted]
        newest_at = np.zeros(count, np.int64)
        np.maximum.at(newest_at, gpus, known_at)
        missed = newest_at[gpus] - known_at > int(MISSED_PASSES * STATE_INTERVAL_SECONDS * NANOS)
        return _marked(count, gpus[is_lost[counted] & ~missed])


def machine_name(cluster: str, machine: str) -> int:
    """Return this process's hash of a machine, as `GpuCounts` identifies it."""
    return int(mix_hashes(_numbers([hash(cluster)]), hash(machine))[0])


class GpuCounts:
    """Counts of every GPU of every machine. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clusters: dict[str, int] = {}
        self._machines = IdIndex()
        self._cluster_of = np.empty(0, np.int32)
        self._id_of = np.empty(0, np.int64)  # this process's hash of the machine id
        self._gpu_report_at = NewestValues(_NEVER)  # newest report of a GPU by a machine
        self._on_buses = NewestValues(_NO_INVENTORY)
        self._driver_gpus = NewestValues(NO_DRIVER_GPUS)
        self._gpus = IdIndex()
        self._machine_of = np.empty(0, np.int32)
        self._is_named = np.empty(0, np.bool_)
        self._value_at = NewestValues(_NEVER)
        self._seen_at = NewestValues(_NEVER)
        self._states = _ReportedStates()

    def add_written(self, written: Mapping[str, Columns], newest: Sequence[ValueGroup]) -> None:
        """Add the rows that were written, by table name; `newest` has the values of the rows of `latest`."""
        if "latest" in written:
            self.add(gpu_reports(written["latest"], newest))
        if "inventory" in written:
            self.add_buses(bus_reports(written["inventory"]))

    def add(self, rows: GpuReports) -> None:
        """Add reports. Of each subject the last in the order of reports counts, so a late backlog changes nothing."""
        of_drivers = np.flatnonzero(rows.driver_gpus != NO_DRIVER_ROW)
        of_drivers = of_drivers[np.argsort(rows.known_at[of_drivers], kind="stable")]
        of_rows = np.flatnonzero(_flags([text.startswith(GPU_KEY_PREFIX) for text in rows.view.texts], rows.view))
        of_rows = of_rows[np.argsort(rows.known_at[of_rows], kind="stable")]
        ranks, value_at, seen_at = rows.known_at[of_rows], rows.value_at[of_rows], rows.seen_at[of_rows]
        has_value, was_seen = value_at != _NEVER, seen_at != _NEVER
        with self._lock:
            gpus = self._numbered(rows, of_rows)
            self._states.add(rows, of_rows, gpus)
            self._value_at.update(gpus[has_value], ranks[has_value], value_at[has_value])
            ranks, seen_at, gpus = ranks[was_seen], seen_at[was_seen], gpus[was_seen]
            self._seen_at.update(gpus, ranks, seen_at)
            self._gpu_report_at.update(self._machine_of[gpus], ranks, seen_at)
            names = mix_hashes(text_hashes(rows.cluster), text_hashes(rows.machine))[of_drivers]
            machines = self._machines_of(names, rows.cluster, rows.machine, of_drivers)
            self._driver_gpus.update(machines, rows.known_at[of_drivers], rows.driver_gpus[of_drivers])

    def add_buses(self, rows: BusReports) -> None:
        """Add PCI inventories; of each machine the newest counts."""
        every = np.argsort(rows.reported_at, kind="stable")
        with self._lock:
            names = mix_hashes(text_hashes(rows.cluster), text_hashes(rows.machine))
            machines = self._machines_of(names[every], rows.cluster, rows.machine, every)
            self._on_buses.update(machines, rows.reported_at[every], rows.gpus[every])

    def on_buses(self, machines: NumericArray) -> NumericArray:
        """Return the number of GPUs on the PCI buses of machines by `machine_name`, 0 without an inventory."""
        with self._lock:
            return np.maximum(self._bus_counts(machines), 0)

    def pci_gpus(self, cluster: str, machines: Sequence[str]) -> dict[str, int]:
        """Return machine id to the number of GPUs on its PCI buses; see `ports.SampleStore`."""
        names = _numbers(machine_name(cluster, one) for one in machines)
        with self._lock:
            found = self._bus_counts(names)
        return {one: count for one, count in zip(machines, found.tolist(), strict=True) if count != _NO_INVENTORY}

    def _bus_counts(self, machines: NumericArray) -> NumericArray:
        numbers = self._machines.find(machines)
        is_known = numbers != NO_NUMBER
        found = np.full(len(machines), _NO_INVENTORY, np.int64)
        found[is_known] = self._on_buses.cells[numbers[is_known]]
        return found

    def reporting(self, since: int, until: int) -> dict[str, int]:
        """Return cluster to GPUs with their last number received in the interval; see `ports.FleetStore`."""
        with self._lock:
            at = self._value_at.cells
            is_lost = self._states.lost(len(at), since, until)
            return self._by_cluster(self._gpus_per_machine((at >= since) & (at <= until) & ~is_lost))

    def known(self, without: Sequence[str]) -> dict[str, KnownGpus]:
        """Return cluster to the GPUs of its machines, except machines in `without`; see `ports.FleetStore`."""
        with self._lock:
            wanted = ~np.isin(self._id_of, _numbers(map(hash, without)))
            seen_at = self._seen_at.cells
            apart = np.abs(seen_at - self._gpu_report_at.cells[self._machine_of])
            there = wanted[self._machine_of] & (seen_at != _NEVER) & (apart <= REPORT_WINDOW_SECONDS * NANOS)
            gpus = self._gpus_per_machine(there)
            is_counted = (gpus > 0) | (wanted & (self._driver_gpus.cells == 0))
            nvml = self._by_cluster(np.where(is_counted, gpus, _NO_GPUS), least=0)
            pci = self._by_cluster(np.where(wanted, self._on_buses.cells, _NO_INVENTORY), least=0)
        return {one: KnownGpus(pci=pci.get(one), nvml=nvml.get(one)) for one in sorted({*nvml, *pci})}

    def _gpus_per_machine(self, counted: NumericArray) -> NumericArray:
        """Return the number of the GPUs on each machine for which `counted` is true.

        GPUs identified only by index count only if the machine has no others: they may be the same GPUs.
        """
        machines, named = self._machine_of[counted], self._is_named[counted]
        every = np.bincount(machines, minlength=len(self._machines))
        if named.all():
            return every
        with_name = np.bincount(machines[named], minlength=len(self._machines))
        return np.where(with_name > 0, with_name, every)

    def _by_cluster(self, per_machine: NumericArray, least: int = 1) -> dict[str, int]:
        """Return the sum of each cluster that has a machine with at least `least` GPUs."""
        counted = np.flatnonzero(per_machine >= least)
        clusters = self._cluster_of[counted]
        sums = np.bincount(clusters, per_machine[counted], minlength=len(self._clusters)).astype(np.int64)
        present = np.bincount(clusters, minlength=len(self._clusters)) > 0
        return {name: int(sums[number]) for name, number in self._clusters.items() if present[number]}

    def _numbered(self, rows: GpuReports, of_rows: NumericArray) -> NumericArray:
        """Return the index of the GPU of each row; new GPUs are added."""
        places = mix_hashes(text_hashes(rows.cluster), text_hashes(rows.machine))[of_rows]
        names = mix_hashes(places, text_hashes(rows.view)[of_rows])
        gpus, firsts = self._gpus.assign(names)
        if len(firsts):
            new = of_rows[firsts]
            machines = self._machines_of(places[firsts], rows.cluster, rows.machine, new)
            is_named = [not rows.view.texts[one].startswith(INDEX_KEY_PREFIX) for one in rows.view.rows[new].tolist()]
            self._machine_of = np.concatenate([self._machine_of, machines])
            self._is_named = np.concatenate([self._is_named, np.array(is_named, np.bool_)])
            self._value_at.grow(len(new))
            self._seen_at.grow(len(new))
        return gpus

    def _machines_of(
        self,
        names: NumericArray,
        cluster: DictionaryColumn | IndexedColumn,
        machine: DictionaryColumn | IndexedColumn,
        of_rows: NumericArray,
    ) -> NumericArray:
        """Return the index of each machine; new machines are added. `of_rows` are the rows of `names`."""
        machines, firsts = self._machines.assign(names)
        if len(firsts):
            new = of_rows[firsts]
            clusters = [self._clusters.setdefault(name, len(self._clusters)) for name in cluster.texts]
            self._cluster_of = np.concatenate([self._cluster_of, np.array(clusters, np.int32)[cluster.rows[new]]])
            self._id_of = np.concatenate([self._id_of, text_hashes(machine)[new]])
            self._gpu_report_at.grow(len(new))
            self._on_buses.grow(len(new))
            self._driver_gpus.grow(len(new))
        return machines


def gpu_reports(latest: Columns, newest: Sequence[ValueGroup]) -> GpuReports:
    """Return the GPU reports in columns for the table `latest`, with the values of its rows."""
    view = latest["view"]
    assert isinstance(view, IndexedColumn)
    return GpuReports.of(
        view=view,
        **{name: dictionary_of(latest[name]) for name in ("cluster", "machine", "reader", "lane", "provenance")},
        known_at=np.asarray(latest[KNOWN_AT.name]),
        received_at=np.asarray(latest["received_at"]),
        has_totals=np.asarray(latest["has_totals"]),
        state=np.concatenate([_whole_numbers(group, STATE, NO_STATE) for group in newest]),
        driver_gpus=np.concatenate([_driver_gpus(group) for group in newest]),
    )


def _driver_gpus(group: ValueGroup) -> NumericArray:
    states, gpus = _whole_numbers(group, DRIVER_STATE, NO_STATE), _whole_numbers(group, DRIVER_GPUS, NO_DRIVER_GPUS)
    gpus = np.where((states == WITHOUT_GPUS) & (gpus == NO_DRIVER_GPUS), 0, gpus)
    return np.where(states != NO_STATE, gpus, NO_DRIVER_ROW)


def _whole_numbers(group: ValueGroup, metric: Metric, none: int) -> NumericArray:
    """Return the value of each row, at most 2^31, a state by its stored number; `none` for no value."""
    if metric.id not in group.metrics:
        return np.full(group.count, none)
    found = np.array(group.columns[group.metrics.index(metric.id)], np.float64)  # None becomes NaN
    return np.where(np.isnan(found), none, np.minimum(found, 2**31)).astype(np.int64)  # a sender can send 2^64 - 1


def bus_reports(inventory: Columns) -> BusReports:
    """Return the GPU counts in columns for the table `inventory`."""
    cluster, machine, reported_at, vendors, parents = (
        listed_cells(inventory[name]) for name in ("cluster", "machine", "reported_at", "vendors", "physical_functions")
    )
    functions = (zip(*lists, strict=True) for lists in zip(vendors, parents, strict=True))
    gpus = [sum(vendor == NVIDIA_VENDOR and parent is None for vendor, parent in some) for some in functions]
    return BusReports(dictionary_column(cluster), dictionary_column(machine), _numbers(gpus), _numbers(reported_at))


def _numbers(numbers: Iterable[int]) -> NumericArray:
    return np.fromiter(numbers, np.int64)


def _marked(count: int, numbers: NumericArray) -> NumericArray:
    """Return for each of so many numbers whether it is among `numbers`."""
    found = np.zeros(count, np.bool_)
    found[numbers] = True
    return found


def _flags(flags: Sequence[bool], column: DictionaryColumn | IndexedColumn) -> NumericArray:
    """Return for each row the flag of its text."""
    return np.array(flags, np.bool_)[column.rows]
