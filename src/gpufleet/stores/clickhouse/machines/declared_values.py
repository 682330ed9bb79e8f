"""In-memory declarations of Kubernetes: the newest number of each resource of a machine by each reporter.

A query of the engine for the sums of all clusters takes 16 ms even without any declaration, and each answer about
clusters needs them. The state is arrays of numbers, about 80 bytes per declaration; a declaration is identified by this
process's salted hash of its names, as in `counts.py`.
"""

import threading
from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

import msgspec
import numpy as np

from gpufleet.model.catalogue.kubernetes import (
    ALLOCATABLE,
    ALLOCATED,
    CAPACITY,
    GPU_RESOURCES,
    LABELLED,
    PUBLISHED_GPUS,
)
from gpufleet.model.declarations import DeclaredGpus, DeclaredResource
from gpufleet.model.time import to_datetime
from gpufleet.stores.clickhouse.machines.counts import GpuCounts, machine_name
from gpufleet.stores.clickhouse.schema.columns import Columns, IdIndex, NumericArray, listed_cells

MAX_RESOURCES_PER_MACHINE = 64
"""Over all readers."""

MAX_ROWS = 2_000_000
"""Maximum number of declarations in memory: four of each machine of half a million. More are read for each answer."""

DECLARED_COLUMNS = ("cluster", "machine", "reader", "metric", "resource", "value", "measured_at", "received_at")
"""Columns of a declaration."""

_NONE = -1
"""Value of a declaration that has ended."""

_MOST = 2**31
"""Maximum of a number, that of the catalogue."""

Name = TypeVar("Name", bound=Hashable)

_METRICS = (CAPACITY, ALLOCATABLE, LABELLED, ALLOCATED)

_PARTS = ("devices", "published", "allocatable", "allocated")
"""Numbers that are added up over machines."""

_ROW: dict[str, type[np.generic]] = {
    **dict.fromkeys(("value", "measured_at", "received_at"), np.int64),
    **dict.fromkeys(("report", "resource"), np.int32),
    "metric": np.int8,  # position in `_METRICS`
}
"""Columns of a declaration in memory; `report` is the number of its machine and reader."""

_REPORT: dict[str, type[np.generic]] = {
    **dict.fromkeys(("machine", "machine_id"), np.int64),  # hashes
    "source": np.int32,  # number of its cluster and reader
}
"""Columns of a machine as reported by a reader."""


class _Numbers(Generic[Name]):
    """Distinct names by number."""

    def __init__(self) -> None:
        self._numbers: dict[Name, int] = {}
        self.names: list[Name] = []

    def number(self, name: Name) -> int:
        """Return the number of a name; a new name is added."""
        number = self._numbers.setdefault(name, len(self.names))
        if number == len(self.names):
            self.names.append(name)
        return number


class _Order(msgspec.Struct, frozen=True):
    """Declarations by machine and reader.

    Attributes:
        rows: row numbers, those of a machine and of each of its reporters next to each other.
        machines: hash of the machine of each of them, ascending.
        starts: positions of the first row of each reporter of a machine.
        reports: its report number.
        counted: part, or `labelled`, to whether the row of each position counts for it.
    """

    rows: NumericArray
    machines: NumericArray
    starts: NumericArray
    reports: NumericArray
    counted: dict[str, NumericArray]


class DeclaredValues:
    """Newest declarations of all machines. Thread-safe.

    Of the declarations of a metric and resource by a reader the last in order of measurement counts, of equal times
    the last that was added.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._index, self._reports = IdIndex(), IdIndex()
        self._rows = {name: np.empty(0, kind) for name, kind in _ROW.items()}
        self._report = {name: np.empty(0, kind) for name, kind in _REPORT.items()}
        self._sources, self._resources = _Numbers[tuple[str, str]](), _Numbers[str]()
        self._order: _Order | None = None

    def __len__(self) -> int:
        """Return the number of declarations, with those that have ended."""
        return len(self._index)

    def add(self, written: Columns) -> None:
        """Add rows of the table `declared`, in the order in which they were written."""
        cells = {name: listed_cells(written[name]) for name in DECLARED_COLUMNS}
        names = [cells[name] for name in DECLARED_COLUMNS[:5]]
        hashes = np.fromiter(map(hash, zip(*names, strict=True)), np.int64)
        measured_at = np.array(cells["measured_at"], np.int64)
        new = {
            "value": np.array([_NONE if value is None else min(value, _MOST) for value in cells["value"]], np.int64),
            "measured_at": measured_at,
            "received_at": np.array(cells["received_at"], np.int64),
        }
        with self._lock:
            numbers, firsts = self._index.assign(hashes)
            if len(firsts):
                self._add_rows([[column[row] for row in firsts.tolist()] for column in names])
            order = np.argsort(measured_at, kind="stable")
            is_newer = measured_at[order] >= self._rows["measured_at"][numbers[order]]
            rows = order[is_newer]
            for name, column in new.items():
                self._rows[name][numbers[rows]] = column[rows]  # of duplicate numbers, the last assignment wins

    def _add_rows(self, names: Sequence[Sequence[str]]) -> None:
        """Add rows without a value; `names` are clusters, machines, readers, metrics and resources."""
        clusters, machines, readers, metrics, resources = names
        hashes = np.fromiter(map(hash, zip(clusters, machines, readers, strict=True)), np.int64)
        reports, firsts = self._reports.assign(hashes)
        if len(firsts):
            new = firsts.tolist()
            more: dict[str, list[int]] = {
                "machine": [machine_name(clusters[row], machines[row]) for row in new],
                "machine_id": [hash(machines[row]) for row in new],
                "source": [self._sources.number((clusters[row], readers[row])) for row in new],
            }
            for name, kind in _REPORT.items():
                self._report[name] = np.concatenate([self._report[name], np.array(more[name], kind)])
        count = len(reports)
        added = {
            **{name: np.full(count, _NONE) for name in ("value", "received_at")},
            "measured_at": np.full(count, np.iinfo(np.int64).min),
            "report": reports,
            "resource": np.array([self._resources.number(one) for one in resources]),
            "metric": np.array([_METRICS.index(one) for one in metrics]),
        }
        for name, kind in _ROW.items():
            self._rows[name] = np.concatenate([self._rows[name], added[name].astype(kind)])
        self._order = None

    def _ordered(self) -> _Order:
        if self._order is None:
            machines = self._report["machine"][self._rows["report"]]
            rows = np.lexsort((self._rows["report"], machines))
            report, metric, resource = (self._rows[name][rows] for name in ("report", "metric", "resource"))
            is_gpu, is_published = (self._are(names)[resource] for names in (GPU_RESOURCES, (PUBLISHED_GPUS,)))
            of = {one: metric == place for place, one in enumerate(_METRICS)}
            counted = {
                "devices": of[CAPACITY] & is_gpu,
                "published": of[CAPACITY] & is_published,
                "allocatable": of[ALLOCATABLE] & is_gpu,
                "allocated": of[ALLOCATED] & (is_gpu | is_published),
                "labelled": of[LABELLED],
            }
            starts = np.flatnonzero(np.diff(report, prepend=-1))
            self._order = _Order(rows, machines[rows], starts, report[starts], counted)
        return self._order

    def gpus(self, since: int, without: Sequence[str], counts: GpuCounts) -> dict[str, tuple[DeclaredGpus, ...]]:
        """Return cluster to declared GPU counts; see `ports.FleetStore`. `counts` has the GPUs on PCI buses."""
        with self._lock:
            if not len(self):
                return {}
            found = self._reported(since)
            declares = found["has_devices"] | found["has_published"]
            if without:
                gone = np.fromiter(map(hash, without), np.int64)
                declares &= ~np.isin(self._report["machine_id"][found["report"]], gone)
            return self._summed({name: cells[declares] for name, cells in found.items()}, counts)

    def _reported(self, since: int) -> dict[str, NumericArray]:
        """Return the numbers of each machine and reader, in columns."""
        order, least = self._ordered(), np.iinfo(np.int64).min
        value, at, received_at = (self._rows[name][order.rows] for name in ("value", "measured_at", "received_at"))
        is_current, starts = (value != _NONE) & (received_at >= since), order.starts
        found: dict[str, NumericArray] = {"report": order.reports}
        for name in _PARTS:
            counts = order.counted[name] & is_current
            found[name] = np.add.reduceat(np.where(counts, value, 0), starts)
            found[f"has_{name}"] = np.logical_or.reduceat(counts, starts)
        found["labelled"] = np.maximum.reduceat(np.where(order.counted["labelled"] & is_current, value, _NONE), starts)
        is_published = order.counted["published"]
        published_at, others_at = (
            np.maximum.reduceat(np.where(is_current & some, at, least), starts)
            for some in (is_published, ~is_published)
        )
        found["measured"] = np.where(
            (published_at == least) | (others_at == least),
            np.maximum(published_at, others_at),
            np.minimum(published_at, others_at),
        )
        found["received"] = np.maximum.reduceat(np.where(is_current, received_at, least), starts)
        return found

    def _are(self, names: Sequence[str]) -> NumericArray:
        return np.array([text in names for text in self._resources.names], np.bool_)

    def _summed(self, one: dict[str, NumericArray], counts: GpuCounts) -> dict[str, tuple[DeclaredGpus, ...]]:
        """Return the sums of the numbers of each machine and reader, by cluster and reader."""
        report = {name: cells[one["report"]] for name, cells in self._report.items()}
        devices, published, labelled = one["devices"], one["published"], one["labelled"]
        pci, has_label = counts.on_buses(report["machine"]), labelled != _NONE
        is_multiple = (pci > 0) & (devices >= 2 * pci) & (devices % np.maximum(pci, 1) == 0)
        whole = np.where(has_label & (devices > labelled), labelled, np.where(is_multiple, pci, devices))
        # GPUs of a machine with a device plugin and a DRA driver, as far as its label or its buses show that each has
        # GPUs of its own.
        both = np.minimum(whole + published, np.where(has_label, labelled, pci))
        separate = np.where((devices > 0) & (published > 0), both, 0)
        gpus = np.maximum(np.maximum(devices, published), separate)
        shares = gpus - np.maximum(np.maximum(published, whole), separate)
        is_counted = self._preferred(report, one)
        sources, count = report["source"], len(self._sources.names)

        def total(cells: NumericArray) -> list[int]:
            sums: list[int] = np.bincount(sources, cells, count).astype(np.int64).tolist()
            return sums  # exact, as no number exceeds 2^31

        def newest(cells: NumericArray) -> list[int]:
            at = np.zeros(count, np.int64)
            np.maximum.at(at, sources, cells)
            found: list[int] = at.tolist()
            return found

        optional = {
            name: [number if present else None for number, present in zip(total(one[name]), has, strict=True)]
            for name in _PARTS[1:]
            for has in [total(one[f"has_{name}"])]
        }
        machines, sums = np.bincount(sources, minlength=count).tolist(), total(gpus)
        counted, shared = total(np.where(is_counted, gpus, 0)), total(np.where(is_counted, shares, 0))
        measured, received = newest(one["measured"]), newest(one["received"])
        found: dict[str, list[DeclaredGpus]] = {}
        for number in sorted(np.flatnonzero(machines).tolist(), key=self._sources.names.__getitem__):
            cluster, reader = self._sources.names[number]
            found.setdefault(cluster, []).append(
                DeclaredGpus(
                    reader=reader,
                    machines=machines[number],
                    gpus=sums[number],
                    **{name: numbers[number] for name, numbers in optional.items()},
                    counted=counted[number],
                    shares=shared[number],
                    measured_at=to_datetime(measured[number]),
                    received_at=to_datetime(received[number]),
                )
            )
        return {cluster: tuple(own) for cluster, own in found.items()}

    def _preferred(self, report: dict[str, NumericArray], one: dict[str, NumericArray]) -> NumericArray:
        """Return whether the machine's GPUs are counted by this reader: one with published GPUs, then the newest."""
        machine = report["machine"]
        is_next = machine[1:] == machine[:-1]
        rivals = np.flatnonzero(np.append(is_next, False) | np.append(False, is_next))
        found = np.ones(len(machine), np.bool_)
        if len(rivals):
            machine, sources = machine[rivals], report["source"][rivals]
            _, ranks = np.unique([reader for _, reader in self._sources.names], return_inverse=True)
            order = np.lexsort((ranks[sources], -one["received"][rivals], ~one["has_published"][rivals], machine))
            found[rivals[order]] = np.diff(machine[order], prepend=~machine[order[0]]) != 0
        return found

    def resources(self, cluster: str, machines: Sequence[str], since: int) -> dict[str, tuple[DeclaredResource, ...]]:
        """Return machine id to declared resources; see `ports.SampleStore`."""
        found: dict[str, tuple[DeclaredResource, ...]] = {}
        with self._lock:
            if not len(self):
                return {}
            order = self._ordered()
            ids = sorted(set(machines))
            names = np.array([machine_name(cluster, one) for one in ids], np.int64)
            first, last = (np.searchsorted(order.machines, names, side=side) for side in ("left", "right"))
            for machine, begin, end in zip(ids, first.tolist(), last.tolist(), strict=True):
                own = self._of_rows(order.rows[begin:end], since) if end > begin else ()
                if own:
                    found[machine] = own
        return found

    def _of_rows(self, rows: NumericArray, since: int) -> tuple[DeclaredResource, ...]:
        """Return the resources of the rows of a machine, by reader and resource."""
        column = {name: cells[rows].tolist() for name, cells in self._rows.items()}
        sources = self._report["source"][self._rows["report"][rows]].tolist()
        own: dict[tuple[str, str], dict[str, tuple[int, int, int]]] = {}
        for source, resource, metric, value, measured_at, received_at in zip(
            sources,
            *(column[name] for name in ("resource", "metric", "value", "measured_at", "received_at")),
            strict=True,
        ):
            if value != _NONE and received_at >= since:
                key = self._sources.names[source][1], self._resources.names[resource]
                own.setdefault(key, {})[_METRICS[metric]] = value, measured_at, received_at
        return tuple([_resource(*key, own[key]) for key in sorted(own)[:MAX_RESOURCES_PER_MACHINE]])


def _resource(reader: str, resource: str, cells: dict[str, tuple[int, int, int]]) -> DeclaredResource:
    """Return a resource; `cells` are value, measurement and receipt of each metric."""
    value = {metric: cell[0] for metric, cell in cells.items()}
    return DeclaredResource(
        resource=resource,
        capacity=value.get(CAPACITY, value.get(LABELLED)),
        allocatable=value.get(ALLOCATABLE),
        reader=reader,
        measured_at=to_datetime(max(cell[1] for cell in cells.values())),
        received_at=to_datetime(max(cell[2] for cell in cells.values())),
    )
