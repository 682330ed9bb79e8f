"""In-memory holdings that may be present, of the machines that were requested.

Each answer about GPUs has the present holders, and each evaluation of the rules reads those of all machines. A query of
the engine takes 9 to 15 ms for one machine.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from gpufleet.fleet.attribution.reported import HOLDING_TTL_NS, may_overlap
from gpufleet.model.stored.holdings import HoldingPlace, HoldingQuery, StoredHolding, holding_place
from gpufleet.model.time import LATEST, NANOS

SIZE_LIMIT = 256 << 20
"""Bytes above which the largest cluster is dropped, and read again: pods on some 90,000 GPUs."""

PRUNE_NS = 60 * NANOS
"""Interval after which holdings that have ended are removed from a machine that is read.

After a step of the clock by more than this into the past, the machine is loaded again.
"""

_MACHINE_BYTES = 500
"""Size of a machine without holdings."""


class SizedHolding(NamedTuple):
    """A stored holding, and its estimated size in bytes."""

    stored: StoredHolding
    size: int


def is_recent(stored: StoredHolding, start: int, end: int) -> bool:
    """Return whether a report of a holding must be known to find the holdings that overlap an interval.

    Of a holding that has ended, the end must be known, as an earlier report of it may arrive later.
    """
    since, until = stored.holding.since, stored.holding.until
    if since >= end:
        return False
    return since >= start or stored.reported_at >= start - HOLDING_TTL_NS or (until is not None and until > start)


def is_of_machines(query: HoldingQuery) -> bool:
    """Return whether a query is for all holdings of some machines from an instant on."""
    return query.machines is not None and query == HoldingQuery(
        cluster=query.cluster, machines=query.machines, start=query.start, end=LATEST
    )


class _HeldMachine:
    """Newest reports of the holdings of a machine.

    Attributes:
        horizon: start of the earliest interval for which they are complete; None while the machine is loaded.
        holdings: place to newest report.
    """

    def __init__(self) -> None:
        self.horizon: int | None = None
        self.holdings: dict[HoldingPlace, SizedHolding] = {}


class _HeldCluster:
    def __init__(self) -> None:
        self.machines: dict[str, _HeldMachine] = {}
        self.size = 0

    def add(self, machine: _HeldMachine, one: SizedHolding) -> None:
        place = holding_place(one.stored)
        before = machine.holdings.get(place)
        if before is None or one.stored.reported_at >= before.stored.reported_at:
            self.size += one.size - (before.size if before is not None else 0)
            machine.holdings[place] = one

    def prune(self, machine: _HeldMachine, start: int) -> None:
        """Remove holdings that cannot be present from an instant on."""
        gone = [place for place, one in machine.holdings.items() if not is_recent(one.stored, start, LATEST)]
        for place in gone:
            self.size -= machine.holdings.pop(place).size
        machine.horizon = start


class PresentHoldings:
    """Holdings of the machines that were loaded by a query. Thread-safe.

    Rows that are written during a load and later are added; the order of reports decides which report is the newest.
    """

    def __init__(self, limit: int = SIZE_LIMIT) -> None:
        self._lock = threading.Lock()
        self._limit = limit
        self._clusters: dict[str, _HeldCluster] = {}

    @property
    def size(self) -> int:
        """Size in bytes, estimated."""
        return sum(one.size for one in self._clusters.values())

    def drop(self) -> None:
        """Drop all holdings, because the content of the store is unknown."""
        with self._lock:
            self._clusters.clear()

    def add(self, written: Iterable[SizedHolding]) -> None:
        """Add reports that were written; those of machines that were not requested are left out."""
        with self._lock:
            if not self._clusters:
                return
            for one in written:
                cluster = self._clusters.get(one.stored.cluster)
                machine = cluster.machines.get(one.stored.machine) if cluster is not None else None
                if cluster is not None and machine is not None:
                    cluster.add(machine, one)
            self._bound()

    def fetch(
        self,
        cluster: str,
        machines: Collection[str],
        start: int,
        load: Callable[[Sequence[str]], Sequence[SizedHolding]],
    ) -> list[StoredHolding]:
        """Return the holdings of machines that last beyond an instant, by place.

        Args:
            cluster: the cluster.
            machines: the hub's ids.
            start: the instant.
            load: returns the newest report of each recent holding of machines, see `is_recent`.
        """
        with self._lock:
            known = self._clusters.setdefault(cluster, _HeldCluster())
            found: list[StoredHolding] = []
            missing: list[str] = []
            for id_ in dict.fromkeys(machines):
                machine = known.machines.get(id_)
                if machine is None:
                    known.machines[id_] = _HeldMachine()
                    known.size += _MACHINE_BYTES
                if machine is None or machine.horizon is None or start < machine.horizon:
                    missing.append(id_)
                    if machine is not None and machine.horizon is not None and start < machine.horizon - PRUNE_NS:
                        machine.horizon = None
                    continue
                if start - machine.horizon >= PRUNE_NS:
                    known.prune(machine, start)
                found += [one.stored for one in machine.holdings.values()]
        if missing:
            found += self._load(cluster, known, missing, start, load)
        return sorted((one for one in found if may_overlap(one, start, LATEST)), key=holding_place)

    def _load(
        self,
        cluster: str,
        known: _HeldCluster,
        missing: Sequence[str],
        start: int,
        load: Callable[[Sequence[str]], Sequence[SizedHolding]],
    ) -> list[StoredHolding]:
        loaded = load(missing)
        with self._lock:
            if self._clusters.get(cluster) is known:  # it was not dropped meanwhile
                incomplete = {id_ for id_ in missing if known.machines[id_].horizon is None}
                for one in loaded:
                    if one.stored.machine in incomplete:
                        known.add(known.machines[one.stored.machine], one)
                for id_ in incomplete:
                    known.machines[id_].horizon = start
                self._bound()
        return [one.stored for one in loaded]

    def _bound(self) -> None:
        """Drop the largest clusters above the limit."""
        while self.size > self._limit:
            del self._clusters[max(self._clusters, key=lambda one: self._clusters[one].size)]
