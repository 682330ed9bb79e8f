"""How many GPUs there are and report, by cluster, of what is kept in memory of each: about 60 bytes.

Counting a million of them out of three million rows takes the engine most of a second, and this some milliseconds.
What is kept is numbers in arrays; GPUs and machines are known by 64 bits of their names, mixed from this process's
hashes of the texts, which nobody outside can choose: two of a million are taken for one with a chance of less than
one in ten million.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from gpufleet.model.machine import NVIDIA_VENDOR, PCI_READER
from gpufleet.model.stored.samples import KnownGpus
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.stores.clickhouse.samples.keys import coded
from gpufleet.stores.clickhouse.schema.columns import Cells, Chosen, Coded, Columns, Newest, Numbering, Numeric
from gpufleet.stores.clickhouse.schema.tables import KNOWN_AT

GPU = f"{ViewKind.GPU}/"
"""How the key of a GPU begins."""

UNNAMED = View(kind=ViewKind.GPU, side=Side.HOST, instance="").key
"""How the key of a GPU begins that is known by its place in a list only."""

TOLD_TOGETHER_SECONDS = 1200
"""What a machine told of longer before what it told last is not there any more: twice the longest usual lane."""

_NEVER = 0
_NO_INVENTORY = -1
_MIX = np.int64(-7046029254386353131)
"""An odd number whose bits are without a pattern (2^64 over the golden ratio)."""


class GpuRows(msgspec.Struct, frozen=True):
    """What is told of GPUs: a row may be of any view, and there may be several of one.

    Attributes:
        cluster, machine, view: whose rows they are; texts may be there twice.
        known_at: their places in the order of reports.
        told_at: when a number was received, nanoseconds since 1970; 0 where none was.
        seen_at: when anything of a driver's was received; 0 where it was not a driver's.
    """

    cluster: Coded | Chosen
    machine: Coded | Chosen
    view: Coded | Chosen
    known_at: Numeric
    told_at: Numeric
    seen_at: Numeric


class BusRows(msgspec.Struct, frozen=True):
    """How many GPUs machines have on their buses, as they said at that place in the order of their reports."""

    cluster: Coded
    machine: Coded
    gpus: Numeric
    reported_at: Numeric


class GpuCounts:
    """Every GPU of every machine. Any thread may tell and ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clusters: dict[str, int] = {}
        self._machines = Numbering()
        self._cluster_of = np.empty(0, np.int32)
        self._id_of = np.empty(0, np.int64)  # this process's hash of its id
        self._spoke_at = Newest(_NEVER)  # when it told of a GPU
        self._on_buses = Newest(_NO_INVENTORY)
        self._gpus = Numbering()
        self._machine_of = np.empty(0, np.int32)
        self._is_named = np.empty(0, np.bool_)
        self._told_at = Newest(_NEVER)
        self._seen_at = Newest(_NEVER)

    def take(self, written: Mapping[str, Columns]) -> None:
        """Take in what was written to the tables of these names."""
        if "latest" in written:
            self.tell(rows_of(written["latest"]))
        if "inventory" in written:
            self.tell_buses(buses_of(written["inventory"]))

    def tell(self, rows: GpuRows) -> None:
        """Take in rows: of one GPU the last in the order of reports counts, whatever waited and comes after it."""
        of_rows = np.flatnonzero(_flags([text.startswith(GPU) for text in rows.view.texts], rows.view))
        of_rows = of_rows[np.argsort(rows.known_at[of_rows], kind="stable")]
        ranks, told_at, seen_at = rows.known_at[of_rows], rows.told_at[of_rows], rows.seen_at[of_rows]
        has_told, was_seen = told_at != _NEVER, seen_at != _NEVER
        with self._lock:
            gpus = self._numbered(rows, of_rows)
            self._told_at.tell(gpus[has_told], ranks[has_told], told_at[has_told])
            ranks, seen_at, gpus = ranks[was_seen], seen_at[was_seen], gpus[was_seen]
            self._seen_at.tell(gpus, ranks, seen_at)
            self._spoke_at.tell(self._machine_of[gpus], ranks, seen_at)

    def tell_buses(self, rows: BusRows) -> None:
        """Take in what machines say of their buses; of one machine its newest word counts."""
        every = np.argsort(rows.reported_at, kind="stable")
        with self._lock:
            names = _mixed(_hashes(rows.cluster), _hashes(rows.machine))
            machines = self._machines_of(names[every], rows.cluster, rows.machine, every)
            self._on_buses.tell(machines, rows.reported_at[every], rows.gpus[every])

    def reporting(self, since: int, until: int) -> dict[str, int]:
        """Return cluster to GPUs of which the last number was received between the two; see `ports.Store`."""
        with self._lock:
            at = self._told_at.cells
            told = np.flatnonzero((at >= since) & (at <= until))
            return self._by_cluster(self._of_each(told))

    def known(self, without: Sequence[str]) -> dict[str, KnownGpus]:
        """Return cluster to how many GPUs its machines have, but for some machines by id; see `ports.Store`."""
        with self._lock:
            wanted = ~np.isin(self._id_of, _numbers(map(hash, without)))
            seen_at = self._seen_at.cells
            apart = np.abs(seen_at - self._spoke_at.cells[self._machine_of])
            there = wanted[self._machine_of] & (seen_at != _NEVER) & (apart <= TOLD_TOGETHER_SECONDS * NANOS)
            nvml = self._by_cluster(self._of_each(np.flatnonzero(there)))
            pci = self._by_cluster(np.where(wanted, self._on_buses.cells, _NO_INVENTORY), least=0)
        return {one: KnownGpus(pci=pci.get(one), nvml=nvml.get(one, 0)) for one in sorted({*nvml, *pci})}

    def _of_each(self, gpus: Numeric) -> Numeric:
        """Return how many of these each machine has.

        Those that are known by their place in a list only count where none with a name is there: they may be the same.
        """
        machines, named = self._machine_of[gpus], self._is_named[gpus]
        with_name = np.bincount(machines[named], minlength=len(self._machines))
        return np.where(with_name > 0, with_name, np.bincount(machines, minlength=len(self._machines)))

    def _by_cluster(self, of_each: Numeric, least: int = 1) -> dict[str, int]:
        """Return the sum of each cluster of which a machine has at least so many."""
        counted = np.flatnonzero(of_each >= least)
        clusters = self._cluster_of[counted]
        sums = np.bincount(clusters, of_each[counted], minlength=len(self._clusters)).astype(np.int64)
        present = np.bincount(clusters, minlength=len(self._clusters)) > 0
        return {name: int(sums[number]) for name, number in self._clusters.items() if present[number]}

    def _numbered(self, rows: GpuRows, of_rows: Numeric) -> Numeric:
        """Return the number of the GPU of each of these rows, giving those that are new one."""
        places = _mixed(_hashes(rows.cluster), _hashes(rows.machine))[of_rows]
        names = _mixed(places, _hashes(rows.view)[of_rows])
        gpus, firsts = self._gpus.number(names)
        if len(firsts):
            new = of_rows[firsts]
            machines = self._machines_of(places[firsts], rows.cluster, rows.machine, new)
            is_named = [not rows.view.texts[place].startswith(UNNAMED) for place in rows.view.rows[new]]
            self._machine_of = np.concatenate([self._machine_of, machines])
            self._is_named = np.concatenate([self._is_named, np.array(is_named)])
            self._told_at.grow(len(new))
            self._seen_at.grow(len(new))
        return gpus

    def _machines_of(
        self, names: Numeric, cluster: Coded | Chosen, machine: Coded | Chosen, of_rows: Numeric
    ) -> Numeric:
        """Return the number of each machine, giving those that are new one; `of_rows` are the rows with the names."""
        machines, firsts = self._machines.number(names)
        if len(firsts):
            new = of_rows[firsts]
            clusters = [self._clusters.setdefault(name, len(self._clusters)) for name in cluster.texts]
            self._cluster_of = np.concatenate([self._cluster_of, np.array(clusters, np.int32)[cluster.rows[new]]])
            self._id_of = np.concatenate([self._id_of, _hashes(machine)[new]])
            self._spoke_at.grow(len(new))
            self._on_buses.grow(len(new))
        return machines


def rows_of(latest: Columns) -> GpuRows:
    """Return what rows on their way into the table `latest` tell of GPUs."""
    cluster, machine, view, reader = (latest[name] for name in ("cluster", "machine", "view", "reader"))
    assert isinstance(cluster, Coded)
    assert isinstance(machine, Coded)
    assert isinstance(view, Chosen)
    assert isinstance(reader, Coded)
    received_at = np.asarray(latest["received_at"])
    is_drivers = _flags([name != PCI_READER for name in reader.texts], reader)
    return GpuRows(
        cluster=cluster,
        machine=machine,
        view=view,
        known_at=np.asarray(latest[KNOWN_AT.name]),
        told_at=np.where(np.asarray(latest["tells"]), received_at, _NEVER),
        seen_at=np.where(is_drivers, received_at, _NEVER),
    )


def buses_of(inventory: Columns) -> BusRows:
    """Return what rows on their way into the table `inventory` tell of buses."""
    cluster, machine, reported_at, vendors, parents = (
        _listed(inventory[name]) for name in ("cluster", "machine", "reported_at", "vendors", "physical_functions")
    )
    functions = (zip(*lists, strict=True) for lists in zip(vendors, parents, strict=True))
    gpus = [sum(vendor == NVIDIA_VENDOR and parent is None for vendor, parent in some) for some in functions]
    return BusRows(coded(cluster), coded(machine), _numbers(gpus), _numbers(reported_at))


def _listed(cells: Cells) -> list[Any]:
    assert isinstance(cells, list), "small tables are made row by row"
    return cells


def _hashes(column: Coded | Chosen) -> Numeric:
    """Return this process's hash of each row's text."""
    return _numbers(map(hash, column.texts))[column.rows]


def _mixed(names: Numeric, more: Numeric) -> Numeric:
    """Return one name of two, which cannot change places."""
    return names * _MIX + more


def _numbers(numbers: Iterable[int]) -> Numeric:
    return np.fromiter(numbers, np.int64)


def _flags(flags: Sequence[bool], column: Coded | Chosen) -> Numeric:
    """Return for each row what is so of its text."""
    return np.array(flags, np.bool_)[column.rows]
